"""Calls from lower layers to upper ones. This is the only place where a lower layer reaches an upper one.

A method that users expect on an object of a lower layer, such as `Context.to_openai`, may be implemented in a layer
above it. The table names the function, which is imported when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

TARGETS = {
    "cherry_pick": "sessiontree.ops.branch_methods:cherry_pick_branch",
    "compact": "sessiontree.ops.branch_methods:compact_branch",
    "create": "sessiontree.library.catalog:create",
    "create_private_folder": "sessiontree.files.private_folder:create_folder_here",
    "forget_files": "sessiontree.files.private_folder:forget_files",
    "fork": "sessiontree.library.catalog:fork",
    "merge": "sessiontree.ops.branch_methods:merge_branch",
    "navigate": "sessiontree.ops.branch_methods:navigate_branch",
    "open": "sessiontree.library.catalog:open",
    "promote": "sessiontree.ops.branch_methods:promote_branch",
    "rebase": "sessiontree.ops.branch_methods:rebase_branch",
    "to_anthropic": "sessiontree.convert.anthropic_messages:to_anthropic",
    "to_gemini": "sessiontree.convert.gemini:to_gemini",
    "to_openai": "sessiontree.convert.openai_chat:to_openai",
    "to_openai_responses": "sessiontree.convert.openai_responses:to_openai_responses",
    "to_pydantic_ai": "sessiontree.convert.pydantic_ai:to_pydantic_ai",
    "uncompact": "sessiontree.ops.branch_methods:uncompact_branch",
}
"""The functions of upper layers, each as `module:function`."""


def load(name: str) -> Callable[..., Any]:
    """Import and return the function that `TARGETS` lists under `name`."""
    module, _, function = TARGETS[name].partition(":")
    return getattr(import_module(module), function)
