"""The requests and responses of the REST interface, one module for each subject."""

# ruff: noqa: F403
# pyright: reportGeneralTypeIssues=false
# Several of the modules import the constant `UNSET` of msgspec.

from sessiontree.server.schemas.branch_schemas import *
from sessiontree.server.schemas.field_types import *
from sessiontree.server.schemas.run_schemas import *
from sessiontree.server.schemas.server_schemas import *
from sessiontree.server.schemas.session_schemas import *
from sessiontree.server.schemas.swarm_schemas import *
from sessiontree.server.schemas.tree_schemas import *
