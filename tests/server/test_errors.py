from __future__ import annotations

import inspect
import re

from softmaxd_server import errors


def test_error_tree_drawn_at_the_top_is_the_real_one():
    drawn = re.findall(r"\b(\w+Error)\b", errors.__doc__ or "")
    real = [name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)]
    assert sorted(drawn) == sorted(real)


def test_message_too_large_error_names_the_flag_and_its_value():
    text = str(errors.MessageTooLargeError(2000, 1024))
    assert "2000 bytes" in text
    assert "--max-message-bytes=1024" in text
