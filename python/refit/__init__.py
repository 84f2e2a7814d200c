# SPDX-License-Identifier: Apache-2.0
"""New model weights into running inference: what a trainer calls (Sender) and what an engine calls (Engine).

Thin bindings of librefit-sender and librefit-engine; <refit/sender.h> and <refit/engine.h> say what each option means.
Nothing is copied here: buffers of either side are views of memory."""
from refit.engine import Engine, Pin
from refit.errors import Error
from refit.sender import Report, ReplicaReport, Sender

__all__ = ["Engine", "Error", "Pin", "Report", "ReplicaReport", "Sender"]
__version__ = "0.1.0"
