"""Rewrites JSON schemas of every draft into the few keywords that the backends enforce.

A schema becomes alternatives, each a conjunction of simple rules for one kind of value (`forms`,
`rules`), and these become a schema again (`emit`). Each document valid under the new schema is
valid under the old one. Where the rules cannot express a schema exactly, the new one allows less,
never more; where nothing is left, the schema is rejected.
"""
