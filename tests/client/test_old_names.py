"""Old names of `pocketmq.client`: the error gives the new one."""

from __future__ import annotations

import pytest

from pocketmq import client
from pocketmq.proto.renamed import CLASSES


@pytest.mark.parametrize(("old", "new"), CLASSES.items())
def test_an_old_class_names_the_new_one(old: str, new: str) -> None:
    assert hasattr(client, new)
    with pytest.raises(AttributeError, match=f"no attribute '{old}': it is {new} now"):
        getattr(client, old)


def test_another_name_is_only_unknown() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Consumer'$"):
        client.Consumer  # noqa: B018
