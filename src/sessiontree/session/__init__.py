"""Sessions and branches: one tree kept in sync with one store."""

from sessiontree.session.branch import Branch as Branch
from sessiontree.session.branch import BranchInfo as BranchInfo
from sessiontree.session.branch import UnnamedLeaf as UnnamedLeaf
from sessiontree.session.entry_builder import Item as Item
from sessiontree.session.session import Session as Session
from sessiontree.session.session import clean_name as clean_name
from sessiontree.session.session import compare as compare
from sessiontree.session.session import diff as diff
from sessiontree.session.session import format_place as format_place
from sessiontree.session.session_base import Place as Place
