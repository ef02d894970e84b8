import ml_dtypes
import numpy as np
import pytest
from softmaxd_client import InvalidTensorError, tensors

DTYPES = [np.dtype("<f4"), np.dtype("<f2"), np.dtype(ml_dtypes.bfloat16)]
BIG_ENDIAN = [dtype.newbyteorder(">") for dtype in DTYPES]


def payload_of(value):
    return bytes(tensors.to_tensor(value).payload)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_tensor_contiguous_array_is_not_copied(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = tensors.to_tensor(array)
    assert tensor.layout.shape == (2, 3)
    assert tensor.layout.element.name == dtype.name
    assert tensor.payload.nbytes == tensor.layout.nbytes == array.nbytes
    assert np.shares_memory(np.frombuffer(tensor.payload, np.uint8), array)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_tensor_strided_array_is_row_major(dtype):
    array = np.arange(24).reshape(4, 6).astype(dtype)
    for view in (array.T, array[::2, ::-1], np.asfortranarray(array), np.broadcast_to(array[0], (3, 6))):
        assert payload_of(view) == view.tobytes()


@pytest.mark.parametrize("dtype", BIG_ENDIAN, ids=str)
def test_to_tensor_big_endian_array_is_sent_little_endian(dtype):
    array = np.arange(5).astype(dtype)
    assert payload_of(array) == array.astype(dtype.newbyteorder("<")).tobytes() != array.tobytes()
    assert tensors.to_tensor(array).layout.dtype == dtype


@pytest.mark.parametrize("numbers", [[1, 2.5], [[1, 2], [3, 4]], (0.1,), [np.float64(0.1)]])
def test_to_tensor_list_is_float32(numbers):
    tensor = tensors.to_tensor(numbers)
    assert tensor.layout.dtype == np.float32
    assert bytes(tensor.payload) == np.array(numbers, np.float32).tobytes()


def test_to_tensor_list_of_arrays_keeps_their_dtype():
    assert tensors.to_tensor([np.ones(2, np.float16)] * 3).layout.dtype == np.float16


def test_to_tensor_object_with_array_method_is_read():
    class Holder:
        def __array__(self, dtype=None, copy=None):
            return np.ones((2, 2), np.float16)

    assert payload_of(Holder()) == np.ones((2, 2), np.float16).tobytes()


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (2, 0, 3)])
def test_to_tensor_empty_array_has_no_payload(shape):
    tensor = tensors.to_tensor(np.empty(shape, np.float32))
    assert tensor.layout.shape == shape
    assert tensor.payload.nbytes == 0
    assert tensors.to_array(tensor.payload, tensor.layout, out=None, writable=True).shape == shape


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "bool", "complex64", "V2", "U3", "O", "longdouble"])
def test_to_tensor_other_dtype_is_refused(dtype):
    with pytest.raises(
        InvalidTensorError, match=r"allowed: float32, float16, bfloat16.*astype\(numpy.float32\)"
    ) as caught:
        tensors.to_tensor(np.zeros(3, dtype))
    assert np.dtype(dtype).name in str(caught.value)


@pytest.mark.parametrize("scalar", [np.float32(1), np.array(1, np.float16), 1.0, 3])
def test_to_tensor_without_dimension_is_refused(scalar):
    with pytest.raises(InvalidTensorError, match="without dimensions; allowed: one dimension or more"):
        tensors.to_tensor(scalar)


def test_to_tensor_masked_array_is_refused():
    with pytest.raises(InvalidTensorError, match="mask would be lost"):
        tensors.to_tensor(np.ma.masked_array(np.ones(2, np.float32), [True, False]))


@pytest.mark.parametrize("value", [[[1.0], [1.0, 2.0]], [1e300], [10**400], ["a"], None, object(), {}])
def test_to_tensor_unreadable_value_is_refused(value):
    with pytest.raises(InvalidTensorError):
        tensors.to_tensor(value)


def test_to_tensor_beyond_a_message_is_refused_before_it_is_copied():
    huge = np.broadcast_to(np.float32(0), (2**15, 2**15))  # 4 GiB, on paper
    with pytest.raises(InvalidTensorError, match=r"4294967296 bytes for one message; allowed: .*shorter rows"):
        tensors.to_tensor(huge)


@pytest.mark.parametrize("dtype", DTYPES + BIG_ENDIAN, ids=str)
def test_to_array_gives_back_shape_dtype_and_values(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = tensors.to_tensor(array)
    received = memoryview(bytes(tensor.payload))
    result = tensors.to_array(received, tensor.layout, out=None, writable=True)
    assert result.dtype == array.dtype
    assert result.tobytes() == array.tobytes()
    assert result.flags.writeable
    assert result.flags.c_contiguous
    assert not np.shares_memory(result, np.frombuffer(received, np.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_array_not_writable_is_a_view_of_what_was_received(dtype):
    tensor = tensors.to_tensor(np.arange(6).astype(dtype))
    received = memoryview(b"x" + bytes(tensor.payload))[1:]  # as unaligned as in a message
    result = tensors.to_array(received, tensor.layout, out=None, writable=False)
    assert np.shares_memory(result, np.frombuffer(received, np.uint8))
    assert not result.flags.writeable
    assert result.astype(np.float64).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", DTYPES + BIG_ENDIAN, ids=str)
def test_to_array_out_is_filled_and_returned(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = tensors.to_tensor(array)
    for out in (np.zeros_like(array), np.zeros((3, 2), dtype).T, np.zeros((4, 6), dtype)[::2, ::2], array[:, ::-1]):
        received = memoryview(bytes(tensor.payload))
        tensors.check_out(out, tensor.layout)
        assert tensors.to_array(received, tensor.layout, out=out, writable=True) is out
        assert out.astype(np.float64).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.zeros((3, 2), np.float32), "shape"),
        (np.zeros((2, 3), np.float64), "float64"),
        (np.zeros((2, 3), np.float16), "float16"),
        (np.broadcast_to(np.float32(0), (2, 3)), "read-only"),
        ([[0.0] * 3] * 2, "a list"),
    ],
)
def test_check_out_unfit_array_is_refused(out, words):
    layout = tensors.to_tensor(np.zeros((2, 3), np.float32)).layout
    with pytest.raises(InvalidTensorError, match=words):
        tensors.check_out(out, layout)
