"""Sessions and branches: one tree kept in sync with one store."""

from sessiontree.session.session import Branch as Branch
from sessiontree.session.session import Session as Session
