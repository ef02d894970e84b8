import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
import types

import ml_dtypes
import numpy as np
import pytest
from softmaxd_client import InvalidTensorError, device_tensors, dlpack
from softmaxd_client.device_tensors import as_device_tensor, export, is_on_device, synchronize

CUDA, ROCM, MANAGED = 2, 10, 13
FLOAT32, FLOAT16, BFLOAT16 = (2, 32, 1), (2, 16, 1), (4, 16, 1)
ADDRESS = 0x7F00_0000_1000

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


# A capsule calls its exporter's destructor and reads its name when it ends, but does not keep the exporter, which is in
# a reference cycle: the collector must not take it before.
_EXPORTERS: list[object] = []


class Exporter:
    """A tensor of no framework, at an address that nothing here reads or writes."""

    def __init__(
        self, shape, *, strides=None, dtype=FLOAT32, device=(CUDA, 3), address=ADDRESS, byte_offset=0, version=None
    ):
        self.device = device
        self.streams = []
        self.destroyed = 0
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = dlpack.Tensor(
            data=address,
            device_type=device[0],
            device_id=device[1],
            ndim=len(shape),
            dtype=dlpack.DataType(*dtype),
            shape=ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)),
            strides=ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64)) if strides is not None else None,
            byte_offset=byte_offset,
        )
        self._name = b"dltensor" if version is None else b"dltensor_versioned"
        self._managed = tensor if version is None else dlpack.VersionedTensor(version_major=version, tensor=tensor)
        self._destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._destroy)
        _EXPORTERS.append(self)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream):
        self.streams.append(stream)
        return _new_capsule(
            ctypes.addressof(self._managed), self._name, ctypes.cast(self._destructor, ctypes.c_void_p).value
        )

    def _destroy(self, _):
        self.destroyed += 1


class Interface:
    """An object without DLPack."""

    def __init__(self, **changes):
        fields = {"shape": (2, 3), "typestr": "<f4", "data": (ADDRESS, False), "version": 3, **changes}
        self.__cuda_array_interface__ = fields


def described(tensor):
    return (tensor.runtime, tensor.element.name, tensor.shape, tensor.address, tensor.device, tensor.nbytes)


@pytest.mark.parametrize("version", [None, 1])
@pytest.mark.parametrize(("dtype", "name"), [(FLOAT32, "float32"), (FLOAT16, "float16"), (BFLOAT16, "bfloat16")])
@pytest.mark.parametrize(("device", "runtime"), [(CUDA, "cuda"), (ROCM, "hip")])
def test_as_device_tensor_dlpack_is_described(device, runtime, dtype, name, version):
    exporter = Exporter((2, 3), strides=(3, 1), dtype=dtype, device=(device, 3), byte_offset=64, version=version)
    assert is_on_device(exporter)
    tensor = as_device_tensor(exporter)
    assert described(tensor) == (runtime, name, (2, 3), ADDRESS + 64, 3, 6 * dtype[1] // 8)
    assert exporter.streams == [None]


@pytest.mark.parametrize("version", [None, 1])
def test_as_device_tensor_capsule_is_kept_and_frees_itself(version):
    exporter = Exporter((4,), version=version)
    tensor = as_device_tensor(exporter)
    assert exporter.destroyed == 0
    assert dlpack.tensor_of(tensor.owner).data == ADDRESS  # raises for a consumed one
    del tensor
    assert exporter.destroyed == 1


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 3), None),
        ((2, 3), (3, 1)),
        ((5, 1, 2), (2, 77, 1)),
        ((1, 4), (0, 1)),
        ((4, 1), (1, -9)),
        ((1, 1), (5, 7)),
        ((3, 0, 4), (1, 1, 1)),
    ],
)
def test_as_device_tensor_contiguous_is_taken(shape, strides):
    assert as_device_tensor(Exporter(shape, strides=strides)).shape == shape


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 3), (1, 2)), ((2, 3), (4, 1)), ((4,), (2,)), ((4,), (0,)), ((4,), (-1,)), ((2, 2), (0, 1))],
)
def test_as_device_tensor_strided_is_refused(shape, strides):
    with pytest.raises(InvalidTensorError, match=re.escape(f"strides {strides}") + r".*\.contiguous\(\)"):
        as_device_tensor(Exporter(shape, strides=strides))
    in_bytes = tuple(4 * stride for stride in strides)
    with pytest.raises(InvalidTensorError, match=re.escape(f"strides {in_bytes}")):
        as_device_tensor(Interface(shape=shape, strides=in_bytes))


def test_as_device_tensor_of_no_elements_has_no_bytes():
    tensor = as_device_tensor(Exporter((3, 0), address=None))
    assert (tensor.shape, tensor.address, tensor.nbytes) == ((3, 0), 0, 0)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ((2, 64, 1), "float64"),
        ((0, 32, 1), "int32"),
        ((1, 16, 1), "uint16"),
        ((5, 64, 1), "complex64"),
        ((6, 8, 1), "bool8"),
        ((2, 32, 4), "float32 x 4"),
        ((10, 8, 1), "DLPack type 10 of bits 8"),
    ],
)
def test_as_device_tensor_of_other_dtype_is_refused(dtype, name):
    with pytest.raises(InvalidTensorError, match=f"got a tensor of {name}; allowed: float32, float16, bfloat16"):
        as_device_tensor(Exporter((2,), dtype=dtype))


@pytest.mark.parametrize("value", [Exporter(()), Exporter((), strides=()), Interface(shape=())])
def test_as_device_tensor_of_rank_zero_is_refused(value):
    with pytest.raises(InvalidTensorError, match="without dimensions"):
        as_device_tensor(value)


def test_as_device_tensor_in_managed_memory_is_on_a_device_and_refused():
    exporter = Exporter((2,), device=(MANAGED, 0))
    assert is_on_device(exporter)
    with pytest.raises(InvalidTensorError, match="managed memory"):
        as_device_tensor(exporter)


def test_as_device_tensor_of_a_later_dlpack_is_refused():
    with pytest.raises(InvalidTensorError, match="got DLPack 2"):
        as_device_tensor(Exporter((2,), version=2))


def test_as_device_tensor_that_refuses_is_refused_in_its_words():
    class Refusing(Exporter):
        def __dlpack__(self, *, stream):
            raise BufferError("use tensor.detach()")

    with pytest.raises(InvalidTensorError, match=r"a Refusing on a GPU .*use tensor\.detach\(\)"):
        as_device_tensor(Refusing((2,)))


@pytest.mark.parametrize("strides", [None, (12, 4)])
@pytest.mark.parametrize("version", [2, 3])
def test_as_device_tensor_cuda_array_interface_is_described(strides, version):
    value = Interface(strides=strides, version=version)
    assert is_on_device(value)
    tensor = as_device_tensor(value)
    assert described(tensor) == ("cuda", "float32", (2, 3), ADDRESS, -1, 24)
    assert tensor.owner is value


def test_as_device_tensor_cuda_array_interface_float16_is_described():
    tensor = as_device_tensor(Interface(typestr="<f2", strides=(6, 2)))
    assert (tensor.element.name, tensor.nbytes) == ("float16", 12)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"typestr": "<f8"}, "got a tensor of <f8.*DLPack does"),
        ({"typestr": ">f4"}, "got a tensor of >f4"),
        ({"mask": object()}, "masked array"),
        ({"strides": (4,)}, "could not be read"),
        ({"data": None}, "could not be read"),
        ({"shape": None}, "could not be read"),
    ],
)
def test_as_device_tensor_cuda_array_interface_unfit_is_refused(changes, reason):
    with pytest.raises(InvalidTensorError, match=reason):
        as_device_tensor(Interface(**changes))


class Unexportable:
    def __dlpack_device__(self):
        raise BufferError("on two devices")


@pytest.mark.parametrize(
    "value",
    [np.zeros(3, np.float32), np.zeros(3, ml_dtypes.bfloat16), [1.0, 2.0], 3.0, "abc", None, Unexportable(), Exporter],
)
def test_values_of_no_device_are_told_apart(value):
    assert not is_on_device(value)
    with pytest.raises(InvalidTensorError, match="allowed"):
        as_device_tensor(value)


def test_dlpack_of_the_cpu_is_asked_before_the_cuda_array_interface():
    exporter = Exporter((2,), device=(1, 0))
    exporter.__cuda_array_interface__ = {}
    assert not is_on_device(exporter)


@pytest.mark.parametrize("module", ["imaginary", "imaginary.nn.parameter"])
def test_empty_like_is_the_one_of_the_module_of_the_class(monkeypatch, module):
    framework = types.ModuleType("imaginary")
    framework.empty_like = lambda value: ("like", value)
    monkeypatch.setitem(sys.modules, "imaginary", framework)
    derived = types.ModuleType("derived")
    derived.empty_like = np.empty_like
    monkeypatch.setitem(sys.modules, "derived", derived)
    value = type("Derived", (type("Tensor", (), {"__module__": module}),), {"__module__": "derived"})()
    assert device_tensors.empty_like(value) == ("like", value)


def test_empty_like_without_one_is_refused():
    with pytest.raises(InvalidTensorError, match=r"Exporter.*out="):
        device_tensors.empty_like(Exporter((2,)))


class FakeDriver:
    """No driver, and no device: functions of the C signatures of CUDA's and HIP's, over one made-up allocation."""

    START, BYTES, DEVICE, CONTEXT = ADDRESS - 0x800, 1 << 20, 3, 0xC0DE
    HANDLE = bytes(range(64))
    BUS_ID = b"0000:19:00.0"

    def __init__(self, prefix):
        self.calls = []
        self.errors = {}
        self.context = self.CONTEXT
        self.current = 0  # HIP's device of the thread
        number, address = ctypes.c_int, ctypes.c_uint64
        to_number, to_pointer = ctypes.POINTER(number), ctypes.POINTER(ctypes.c_void_p)
        address_range = (ctypes.POINTER(address), ctypes.POINTER(ctypes.c_size_t), address), self._address_range
        ipc_handle = (ctypes.POINTER(ctypes.c_char * 64), address), self._ipc_handle
        bus_id = (ctypes.POINTER(ctypes.c_char), number, number), self._bus_id
        functions = {
            "cu": {
                "cuPointerGetAttribute": ((to_pointer, number, address), self._attribute),
                "cuCtxPushCurrent_v2": ((ctypes.c_void_p,), lambda context: None),
                "cuCtxPopCurrent_v2": ((to_pointer,), lambda context: None),
                "cuMemGetAddressRange_v2": address_range,
                "cuIpcGetMemHandle": ipc_handle,
                "cuCtxGetDevice": ((to_number,), self._context_device),
                "cuDeviceGetPCIBusId": bus_id,
                "cuCtxSynchronize": ((), lambda: None),
            },
            "hip": {
                "hipGetDevice": ((to_number,), self._get_device),
                "hipSetDevice": ((number,), self._set_device),
                "hipMemGetAddressRange": address_range,
                "hipIpcGetMemHandle": ipc_handle,
                "hipDeviceGetPCIBusId": bus_id,
                "hipDeviceSynchronize": ((), lambda: None),
            },
        }[prefix]
        for name, (arguments, function) in functions.items():
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._recorded(name, function)))

    def _recorded(self, name, function):
        def call(*arguments):
            plain = [argument for argument in arguments if isinstance(argument, int)]
            self.calls.append((name, *plain))
            if name not in self.errors:
                function(*arguments)
            return self.errors.get(name, 0)

        return call

    def _attribute(self, context, attribute, address):
        context[0] = self.context

    def _address_range(self, start, size, address):
        start[0], size[0] = self.START, self.BYTES

    def _ipc_handle(self, handle, start):
        handle[0].raw = self.HANDLE

    def _context_device(self, device):
        device[0] = self.DEVICE

    def _bus_id(self, text, room, device):
        ctypes.memmove(text, self.BUS_ID + b"\0", len(self.BUS_ID) + 1)

    def _get_device(self, device):
        device[0] = self.current

    def _set_device(self, device):
        self.current = device


@pytest.fixture
def cuda_driver(monkeypatch):
    driver = FakeDriver("cu")
    monkeypatch.setattr(device_tensors, "_library", lambda names: driver)
    return driver


@pytest.fixture
def hip_driver(monkeypatch):
    driver = FakeDriver("hip")
    monkeypatch.setattr(device_tensors, "_library", lambda names: driver)
    return driver


EXPORTED = device_tensors.Export(FakeDriver.HANDLE, "0000:19:00.0", FakeDriver.BYTES, 0x800)
IN_CONTEXT = (("cuPointerGetAttribute", 1, ADDRESS), ("cuCtxPushCurrent_v2", FakeDriver.CONTEXT))


def test_export_cuda_asks_the_driver_within_the_context_of_the_memory(cuda_driver):
    assert export(as_device_tensor(Exporter((2,)))) == EXPORTED
    assert cuda_driver.calls == [
        *IN_CONTEXT,
        ("cuMemGetAddressRange_v2", ADDRESS),
        ("cuIpcGetMemHandle", FakeDriver.START),
        ("cuCtxGetDevice",),
        ("cuDeviceGetPCIBusId", 32, FakeDriver.DEVICE),
        ("cuCtxPopCurrent_v2",),
    ]


def test_export_hip_asks_the_runtime_on_the_device_of_the_tensor(hip_driver):
    hip_driver.current = 1
    assert export(as_device_tensor(Exporter((2,), device=(ROCM, 3)))) == EXPORTED
    assert hip_driver.calls == [
        ("hipGetDevice",),
        ("hipSetDevice", 3),
        ("hipMemGetAddressRange", ADDRESS),
        ("hipIpcGetMemHandle", FakeDriver.START),
        ("hipGetDevice",),
        ("hipDeviceGetPCIBusId", 32, 3),
        ("hipSetDevice", 1),
    ]


def test_synchronize_cuda_waits_for_the_context_of_the_memory(cuda_driver):
    synchronize(as_device_tensor(Interface()))
    assert cuda_driver.calls == [*IN_CONTEXT, ("cuCtxSynchronize",), ("cuCtxPopCurrent_v2",)]


def test_synchronize_hip_waits_for_the_device_of_the_tensor(hip_driver):
    synchronize(as_device_tensor(Exporter((2,), device=(ROCM, 3))))
    assert hip_driver.calls == [
        ("hipGetDevice",),
        ("hipSetDevice", 3),
        ("hipDeviceSynchronize",),
        ("hipSetDevice", 0),
    ]


@pytest.mark.parametrize("name", ["cuPointerGetAttribute", "cuIpcGetMemHandle"])
def test_export_of_memory_without_a_handle_says_why(cuda_driver, name):
    cuda_driver.errors[name] = 1
    with pytest.raises(InvalidTensorError, match=f"{name} failed with error 1; only memory .*cudaMalloc.*expandable"):
        export(as_device_tensor(Exporter((2,))))


def test_export_of_memory_of_no_context_says_why(cuda_driver):
    cuda_driver.context = None
    with pytest.raises(InvalidTensorError, match=r"no CUDA context; only memory .*cudaMalloc"):
        export(as_device_tensor(Exporter((2,))))
    assert [name for name, *_ in cuda_driver.calls] == ["cuPointerGetAttribute"]


def test_export_hip_of_memory_without_a_handle_says_why(hip_driver):
    hip_driver.errors["hipIpcGetMemHandle"] = 1
    with pytest.raises(InvalidTensorError, match=r"hipIpcGetMemHandle failed with error 1; only memory .*hipMalloc"):
        export(as_device_tensor(Exporter((2,), device=(ROCM, 3))))
    assert hip_driver.current == 0


@pytest.mark.parametrize(
    "name", ["cuCtxPushCurrent_v2", "cuMemGetAddressRange_v2", "cuCtxGetDevice", "cuDeviceGetPCIBusId"]
)
def test_export_that_fails_names_the_call_and_the_code(cuda_driver, name):
    cuda_driver.errors[name] = 201
    with pytest.raises(InvalidTensorError, match=f"^{name} failed with error 201$"):
        export(as_device_tensor(Exporter((2,))))
    called = [name for name, *_ in cuda_driver.calls]
    assert (called[-1] == "cuCtxPopCurrent_v2") == (name != "cuCtxPushCurrent_v2")


def test_synchronize_that_fails_names_the_call_and_the_code(cuda_driver):
    cuda_driver.errors["cuCtxSynchronize"] = 700
    with pytest.raises(InvalidTensorError, match=r"^cuCtxSynchronize failed with error 700$"):
        synchronize(as_device_tensor(Exporter((2,))))


def test_export_of_no_elements_is_refused(cuda_driver):
    with pytest.raises(InvalidTensorError, match="without elements"):
        export(as_device_tensor(Exporter((2, 0), address=None)))
    assert cuda_driver.calls == []


def test_export_with_a_library_that_lacks_a_call_is_refused(cuda_driver):
    del cuda_driver.cuIpcGetMemHandle
    with pytest.raises(InvalidTensorError, match="the GPU's library has no cuIpcGetMemHandle"):
        export(as_device_tensor(Exporter((2,))))


def test_library_is_one_that_the_process_has_loaded(tmp_path):
    path = shutil.copy(ml_dtypes._ml_dtypes_ext.__file__, tmp_path / "libvendor.so")
    names = ("libnone.so.1", str(path))
    with pytest.raises(InvalidTensorError, match=r"this process has loaded none of libnone\.so\.1, .*libvendor\.so"):
        device_tensors._library(names)
    loaded = ctypes.CDLL(str(path))
    assert device_tensors._library(names)._handle == loaded._handle


# What follows runs on a real GPU.

on_gpu = pytest.mark.skipif(
    os.environ.get("SOFTMAXD_TEST_GPU") != "cuda", reason="needs an NVIDIA GPU; make test-gpu sets SOFTMAXD_TEST_GPU"
)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpu_tensor_is_described(torch, dtype):
    x = torch.zeros(2, 3, dtype=getattr(torch, dtype), device="cuda")
    assert is_on_device(x)
    assert not is_on_device(x.cpu())
    expected = ("cuda", dtype, (2, 3), x.data_ptr(), x.device.index, x.numel() * x.element_size())
    assert described(as_device_tensor(x)) == expected


@on_gpu
def test_gpu_export_says_where_the_tensor_lies(torch):
    x = torch.zeros(1024, device="cuda")
    exported = export(as_device_tensor(x))
    assert len(exported.ipc_handle) == 64
    assert any(exported.ipc_handle)
    assert re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.0", exported.pci_bus_id)
    assert int(exported.pci_bus_id[5:7], 16) == torch.cuda.get_device_properties(x.device).pci_bus_id
    # PyTorch's allocator takes at least 2 MiB at once from CUDA.
    assert exported.allocation_bytes >= 2 << 20
    assert 0 <= exported.offset <= exported.allocation_bytes - 4096


@on_gpu
def test_gpu_export_of_tensors_of_one_allocation_differs_by_the_offset(torch):
    x = torch.zeros(1024, device="cuda")
    whole, view = export(as_device_tensor(x)), export(as_device_tensor(x[3:]))
    assert view.offset == whole.offset + 12
    assert (view.ipc_handle, view.allocation_bytes) == (whole.ipc_handle, whole.allocation_bytes)
    large = torch.zeros(64 << 20, device="cuda")
    assert export(as_device_tensor(large)).ipc_handle != whole.ipc_handle


OPEN_AND_PRINT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)
handle, bus_id, offset, size = bytes.fromhex(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
device, context, start = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGetByPCIBusId", ctypes.byref(device), bus_id.encode())
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxPushCurrent_v2", context)
call("cuIpcOpenMemHandle_v2", ctypes.byref(start), Handle.from_buffer_copy(handle), ctypes.c_uint(1))
values = ctypes.create_string_buffer(size)
call("cuMemcpyDtoH_v2", values, ctypes.c_uint64(start.value + offset), ctypes.c_size_t(size))
print(values.raw.hex())
"""


@on_gpu
def test_gpu_export_lets_another_process_read_the_values(torch):
    x = torch.arange(1024, dtype=torch.float32, device="cuda")[5:9]
    tensor = as_device_tensor(x)
    synchronize(tensor)
    exported = export(tensor)
    arguments = (exported.ipc_handle.hex(), exported.pci_bus_id, str(exported.offset), str(tensor.nbytes))
    command = [sys.executable, "-c", OPEN_AND_PRINT, *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert np.frombuffer(bytes.fromhex(printed), np.float32).tolist() == [5.0, 6.0, 7.0, 8.0]


@on_gpu
def test_gpu_tensor_unfit_is_refused(torch):
    x = torch.zeros(4, 4, device="cuda")
    with pytest.raises(InvalidTensorError, match=r"\.contiguous\(\)"):
        as_device_tensor(x.T)
    with pytest.raises(InvalidTensorError, match="float64"):
        as_device_tensor(x.double())
    with pytest.raises(InvalidTensorError, match="detach"):
        as_device_tensor(x.requires_grad_())


@on_gpu
def test_gpu_thread_without_a_context_exports_alike(torch):
    tensor = as_device_tensor(torch.zeros(1024, device="cuda"))
    outcomes = []

    def run():
        synchronize(tensor)
        outcomes.append(export(tensor))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert outcomes == [export(tensor)]


@on_gpu
def test_gpu_synchronize_waits_for_every_stream(torch):
    x = torch.zeros(1024, device="cuda")
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1_000_000_000)  # clock cycles: about half a second
        x.fill_(7)
        done.record()
    tensor = as_device_tensor(x)
    assert not done.query()
    synchronize(tensor)
    assert done.query()
    assert x.tolist() == [7.0] * 1024


@on_gpu
def test_gpu_empty_like_is_of_the_same_kind(torch):
    x = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.bfloat16, device="cuda"))
    y = device_tensors.empty_like(x)
    assert (type(y), y.shape, y.dtype, y.device) == (torch.Tensor, x.shape, x.dtype, x.device)
    assert as_device_tensor(y).address != x.data_ptr()


EXPORT = """
import torch
from softmaxd_client import InvalidTensorError
from softmaxd_client.device_tensors import as_device_tensor, export
try:
    export(as_device_tensor(torch.zeros(1024, device="cuda")))
except InvalidTensorError as error:
    print(error)
"""


@on_gpu
@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_gpu_export_of_memory_without_a_handle_says_why(torch, setting):
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting}
    printed = subprocess.run(
        [sys.executable, "-c", EXPORT], check=True, capture_output=True, text=True, env=environment
    ).stdout
    assert "only memory that this process has from cudaMalloc has an IPC handle" in printed


@on_gpu
def test_gpu_cupy_array_is_described_and_exported():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x = cupy.zeros((2, 3), cupy.float16)
    for value in (x, Interface(**x.__cuda_array_interface__)):
        tensor = as_device_tensor(value)
        assert (tensor.element.name, tensor.shape, tensor.address) == ("float16", (2, 3), x.data.ptr)
        assert export(tensor).allocation_bytes >= 12
    assert isinstance(device_tensors.empty_like(x), cupy.ndarray)
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed), pytest.raises(InvalidTensorError, match="managed memory"):
        as_device_tensor(cupy.zeros(3, cupy.float32))


JAX = """
import jax.numpy
from softmaxd_client import InvalidTensorError
from softmaxd_client.device_tensors import as_device_tensor, empty_like, is_on_device, synchronize
x = jax.numpy.zeros((2, 3), jax.numpy.bfloat16)
tensor = as_device_tensor(x)
synchronize(tensor)
assert is_on_device(x)
print(tensor.runtime, tensor.element.name, tensor.shape, tensor.address == x.unsafe_buffer_pointer())
try:
    empty_like(x)
except InvalidTensorError as error:
    print(error)
"""


@on_gpu
def test_gpu_jax_array_is_described():
    pytest.importorskip("jax", reason="JAX is not installed")
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # else it takes most of the memory
    printed = subprocess.run(
        [sys.executable, "-c", JAX], check=True, capture_output=True, text=True, env=environment
    ).stdout
    assert printed.splitlines()[0] == "cuda bfloat16 (2, 3) True"
    assert "Pass out=" in printed
