"""JSON schemas of every draft, rewritten into the few keywords that the backends enforce.

A schema becomes alternatives, each a conjunction of simple rules for one kind of value (`forms`,
`rules`), and these become a schema again (`emit`). Each document that the new schema allows is
valid under the old one. Where no rule says exactly what is left of a schema, the new one allows
less, never more; where nothing is left, the schema is refused.
"""
