import inspect
import subprocess
import sys

import pytest
import softmaxd_client
from softmaxd_client import aio, errors


def test_package_all_is_sorted_and_complete():
    public = {
        name
        for name, value in vars(softmaxd_client).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert set(softmaxd_client.__all__) == public | {"aio", "__version__"}
    assert softmaxd_client.__all__ == sorted(softmaxd_client.__all__)


def test_package_import_loads_neither_server_nor_command_line():
    script = (
        "import sys, softmaxd_client\n"
        "assert not {'softmaxd_server', 'softmaxd_native', 'click', 'rich', 'torch'} & sys.modules.keys(), sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def public_methods(client_class):
    return {
        name: method
        for name, method in inspect.getmembers(client_class, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def test_aio_client_surface_equals_the_other():
    threaded, looped = public_methods(softmaxd_client.SoftmaxClient), public_methods(aio.SoftmaxClient)
    assert threaded.keys() == looped.keys()
    for name in threaded:
        ours, theirs = inspect.signature(threaded[name]), inspect.signature(looped[name])
        assert list(ours.parameters) == list(theirs.parameters), name
        for parameter in ours.parameters.values():
            other = theirs.parameters[parameter.name]
            assert (parameter.kind, parameter.default) == (other.kind, other.default), name
            if (name, parameter.name) != ("stream", "arrays"):  # which may be asynchronous there
                assert parameter.annotation == other.annotation, name
        if name != "stream":
            assert ours.return_annotation == theirs.return_annotation, name
            assert inspect.iscoroutinefunction(looped[name]) or name in ("__init__", "empty")


def test_errors_drawn_tree_names_every_class():
    classes = [
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.SoftmaxdError)
    ]
    assert len(classes) == 9
    for error_class in classes:
        assert error_class.__name__ in errors.__doc__
        assert error_class.__name__ in softmaxd_client.__all__


@pytest.mark.parametrize("name", ["softmax", "softmax_with_execution", "stream", "info", "ping", "close"])
def test_client_method_has_documentation(name):
    assert getattr(softmaxd_client.SoftmaxClient, name).__doc__
    assert getattr(aio.SoftmaxClient, name).__doc__
