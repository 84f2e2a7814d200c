# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of an object lie: tensors of torch, arrays of numpy, whatever has a buffer, or an address and a length."""
import ctypes


def span(value):
    """(address, bytes, object to keep alive). Memory must be contiguous: a view with holes is not what a layout means."""
    if isinstance(value, tuple):
        address, length = value
        return int(address), int(length), None
    if hasattr(value, "data_ptr"):
        return _of_tensor(value)
    if hasattr(value, "__array_interface__"):
        return _of_array(value)
    view = memoryview(value)
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    if view.readonly:
        raise ValueError("the buffer is read-only, and Python does not tell its address; pass (address, bytes)")
    return ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes, view


def _of_tensor(tensor):
    if tensor.device.type != "cpu":
        raise ValueError(f"the tensor is on {tensor.device}, and host memory is what is registered here")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous; register the storage that the layout describes")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor


def _of_array(array):
    interface = array.__array_interface__
    if interface.get("strides") is not None:
        raise ValueError("the array is not contiguous")
    return interface["data"][0], array.nbytes, array


def view(address, length, keep):
    """Read-only bytes at an address, which `keep` owns."""
    array = (ctypes.c_ubyte * length).from_address(address)
    array._keep = keep
    return memoryview(array).cast("B").toreadonly()
