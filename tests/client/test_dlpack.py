import ctypes

import ml_dtypes
import numpy as np
import pytest
from softmaxd_client import InvalidTensorError, tensors

BFLOAT_CODE = 4


class Exporter:
    """A tensor of a framework that is none: DLPack only, bfloat16 as the standard has it."""

    def __init__(self, array, *, versioned=True, device=(1, 0)):
        self.array = array
        self.versioned = versioned
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if not self.versioned:
            options = {}
        if self.array.dtype != ml_dtypes.bfloat16:
            return self.array.__dlpack__(**options)
        capsule = self.array.view(np.uint16).__dlpack__(**options)
        name = b"dltensor_versioned" if b"_versioned" in repr(capsule).encode() else b"dltensor"
        get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
            ("PyCapsule_GetPointer", ctypes.pythonapi)
        )
        # Offsets of dtype.code from dlpack.h: behind data, device and ndim; 32 bytes of version and owner before that.
        offset = 20 + (32 if name == b"dltensor_versioned" else 0)
        ctypes.c_uint8.from_address(get_pointer(capsule, name) + offset).value = BFLOAT_CODE
        return capsule


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_to_tensor_dlpack_is_read_without_a_copy(dtype, versioned):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = tensors.to_tensor(Exporter(array, versioned=versioned))
    assert tensor.layout.dtype == array.dtype
    assert tensor.layout.shape == (2, 3)
    assert bytes(tensor.payload) == array.tobytes()
    assert np.shares_memory(np.frombuffer(tensor.payload, np.uint8), array)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_to_tensor_strided_dlpack_is_row_major(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype).T[::2]
    assert bytes(tensors.to_tensor(Exporter(array)).payload) == array.tobytes()


def test_to_tensor_dlpack_of_a_device_is_refused():
    with pytest.raises(InvalidTensorError, match=r"DLPack device type 2.*tensor\.cpu\(\)"):
        tensors.to_tensor(Exporter(np.zeros(3, np.float32), device=(2, 0)))


def test_to_tensor_dlpack_float64_is_refused():
    with pytest.raises(InvalidTensorError, match="float64"):
        tensors.to_tensor(Exporter(np.zeros(3)))


def test_to_tensor_dlpack_that_refuses_is_refused():
    class Refusing(Exporter):
        def __dlpack__(self, **options):
            raise BufferError("call detach() first")

    with pytest.raises(InvalidTensorError, match=r"call detach\(\) first"):
        tensors.to_tensor(Refusing(np.zeros(3, np.float32)))


def test_to_tensor_dlpack_without_a_capsule_is_refused():
    class Lying(Exporter):
        def __dlpack__(self, **options):
            return 3

    with pytest.raises(InvalidTensorError, match="not an unused DLPack capsule"):
        tensors.to_tensor(Lying(np.zeros(3, np.float32)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_softmax_torch_tensor_gives_its_values(client, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    tensor = torch.arange(12, dtype=getattr(torch, dtype)).reshape(3, 4).T
    result = client.softmax(tensor)
    assert result.shape == (4, 3)
    assert result.dtype.name == dtype
    expected = torch.softmax(tensor.double(), -1).numpy()
    np.testing.assert_allclose(result.astype(np.float64), expected, atol=4e-3)


def test_softmax_torch_tensor_with_gradient_is_refused(client):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(InvalidTensorError, match="detach"):
        client.softmax(torch.zeros(3, requires_grad=True))
