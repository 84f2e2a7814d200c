# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of an object lie: tensors of torch, arrays of numpy or of a GPU, whatever has a buffer, or an address and a
length."""
import ctypes
from typing import Any, NamedTuple, Optional


class Span(NamedTuple):
    """`device` is None on the host, else a GPU's number. `keep` owns the memory."""
    address: int
    length: int
    device: Optional[int] = None
    keep: Any = None


class OnDevice:
    """Read-only bytes of a GPU's memory, as torch.as_tensor(…, device="cuda:N") and cupy.asarray take them, without a copy."""

    def __init__(self, address, length, keep):
        self.__cuda_array_interface__ = {"data": (address, True), "shape": (length,), "typestr": "|u1", "version": 3}
        self._keep = keep


def span(value):
    """Memory must be contiguous: a view with holes is not what a layout means."""
    if isinstance(value, tuple):
        return Span(*value)
    if hasattr(value, "data_ptr"):
        return _of_tensor(value)
    if hasattr(value, "__array_interface__"):
        return _of_array(value)
    view = memoryview(value)
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    if view.readonly:
        raise ValueError("the buffer is read-only, and Python does not tell its address; pass (address, bytes)")
    return Span(ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes, keep=view)


def _of_tensor(tensor):
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"the tensor is on {tensor.device}; host memory and CUDA devices can be read")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous; register the storage that the layout describes")
    device = tensor.device.index if tensor.device.type == "cuda" else None
    return Span(tensor.data_ptr(), tensor.numel() * tensor.element_size(), device, tensor)


def _of_array(array):
    interface = array.__array_interface__
    if interface.get("strides") is not None:
        raise ValueError("the array is not contiguous")
    return Span(interface["data"][0], array.nbytes, keep=array)


def view(address, length, keep):
    """Read-only bytes at an address of the host, which `keep` owns."""
    array = (ctypes.c_ubyte * length).from_address(address)
    array._keep = keep
    return memoryview(array).cast("B").toreadonly()
