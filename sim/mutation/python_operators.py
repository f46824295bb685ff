"""Changes that can be made to a Python module, by the places of its syntax tree.

Of two groups: what is turned (an operator, a statement, a constant), and what is forgotten, as by somebody
who thinks of one case and not of the others (a branch, a member of a table, whatever comes behind the first,
which of two ids is meant). Left alone: docstrings, annotations, imports, `__all__`, decorators, asserts, what
only the type checker reads, and calls of the log.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from sim.mutation.change import ROOT, Change, numbered, squeezed

Group = Literal["turned", "forgotten"]
_FORGOTTEN = {
    "branch forgotten",
    "member forgotten",
    "only the first",
    "another of its type",
    "argument forgotten",
}
"""Operators of that group; the others are of the first."""

_TURNED: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
}
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)
_VALUES = {
    "set",
    "dict",
    "list",
    "tuple",
    "frozenset",
    "deque",
    "Counter",
    "len",
    "int",
    "str",
    "float",
    "bool",
}
"""Functions that make a value or read one, and change nothing else."""
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class _Reader:
    """A module's text and tree."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.tree = ast.parse(text)
        self._begins = [0]
        for line in text.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))
        self._lines = text.splitlines(keepends=True)
        self.found: list[Change] = []

    def offset(self, line: int, column: int) -> int:
        """The tree counts columns in bytes."""
        raw = self._lines[line - 1].encode()[:column]
        return self._begins[line - 1] + len(raw.decode())

    def span(self, node: ast.expr | ast.stmt | ast.pattern) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begins = self.offset(node.lineno, node.col_offset)
        return begins, self.offset(node.end_lineno, node.end_col_offset)

    def source(self, node: ast.expr | ast.stmt | ast.pattern) -> str:
        begins, ends = self.span(node)
        return self.text[begins:ends]


@dataclass(frozen=True, slots=True)
class _Function:
    """A function by its qualified name ('' for a module's own level), with its parameters."""

    name: str = ""
    twins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of each parameter, the others of its type."""

    def inner(self, name: str, parameters: ast.arguments | None = None) -> _Function:
        return _Function(f"{self.name}.{name}".lstrip("."), _twins(parameters) if parameters else {})


def _twins(parameters: ast.arguments) -> Mapping[str, Sequence[str]]:
    by_type: dict[str, list[str]] = defaultdict(list)
    for one in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs):
        if one.annotation is not None:
            by_type[ast.unparse(one.annotation)].append(one.arg)
    return {name: [other for other in names if other != name] for names in by_type.values() for name in names}


class _Place:
    """Where changes are made: a function, and the statement that holds them."""

    def __init__(
        self, reader: _Reader, function: _Function, statement: ast.stmt, head: int | None = None
    ) -> None:
        self.reader, self.function = reader, function
        self._begins, ends = reader.span(statement)
        self._ends = head if head is not None else ends

    def change(self, operator: str, span: tuple[int, int], new: str, statement: str = "") -> None:
        reader, (start, end) = self.reader, span
        text = reader.text
        begins, ends = min(self._begins, start), max(self._ends, end)
        before, after = text[begins:ends], text[begins:start] + new + text[end:ends]
        line = text.count("\n", 0, start) + 1
        reader.found.append(
            Change(
                reader.path,
                self.function.name,
                operator,
                line,
                start,
                end,
                text[start:end],
                new,
                squeezed(before),
                squeezed(after),
                squeezed(statement or before),
            )
        )


def changes(path: str, text: str, group: Group = "turned") -> list[Change]:
    """Every change that the operators of a group make of a module."""
    reader = _Reader(path, text)
    _block(reader, _Function(), reader.tree.body, at_module=True)
    found = [change for change in reader.found if (change.operator in _FORGOTTEN) == (group == "forgotten")]
    # A union of types is no sum.
    return [change for change in numbered(found) if change.function or change.new.strip() not in ("&", "|")]


def compiles(change: Change) -> bool:
    """Whether the module with the change is one that Python can read."""
    try:
        ast.parse(change.text())
    except SyntaxError:
        return False
    return True


def _block(reader: _Reader, function: _Function, body: list[ast.stmt], *, at_module: bool = False) -> None:
    for at, statement in enumerate(body):
        if _left_alone(statement):
            continue
        following = body[at + 1] if at + 1 < len(body) else None
        _statement(reader, function, statement, following, at_module)


def _left_alone(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Pass() | ast.Global() | ast.Nonlocal():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "logger")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def _statement(
    reader: _Reader, function: _Function, statement: ast.stmt, following: ast.stmt | None, at_module: bool
) -> None:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            inner = function.inner(statement.name, statement.args)
            for default in (*statement.args.defaults, *statement.args.kw_defaults):
                if default is not None:
                    place = _Place(reader, inner, statement, reader.span(statement.body[0])[0])
                    _expression(place, default)
            _block(reader, inner, statement.body)
            return
        case ast.ClassDef():
            _block(reader, function.inner(statement.name), statement.body, at_module=True)
            return
    head = _head(reader, statement)
    place = _Place(reader, function, statement, head)
    if not at_module:
        _dropped(place, statement)
        _swapped(place, statement, following)
    match statement:
        case ast.If(test=test):
            _condition(place, test)
            _never(place, test)
        case ast.While(test=test):
            _condition(place, test)
        case ast.For(iter=iterated):
            _only_the_first(place, iterated)
        case ast.Assign(value=value) | ast.AnnAssign(value=value) if at_module:
            _of_table(place, value)
        case ast.Try(handlers=handlers, body=body, orelse=orelse, finalbody=finalbody):
            for handler in handlers:
                _choices(_Place(reader, function, handler.body[0]), handler.type)
            for inner_body in (body, *(handler.body for handler in handlers), orelse, finalbody):
                _block(reader, function, inner_body)
            return
        case ast.Match(subject=subject, cases=cases):
            _expression(place, subject)
            for case in cases:
                at_case = _Place(reader, function, case.body[0])
                _case(at_case, case)
                if case.guard is not None:
                    _condition(at_case, case.guard)
                _block(reader, function, case.body)
            return
    for expression in _expressions(statement):
        _expression(place, expression)
    for name in ("body", "orelse", "finalbody"):
        _block(reader, function, getattr(statement, name, []))


def _head(reader: _Reader, statement: ast.stmt) -> int | None:
    """Where a statement with a body stops being what its name tells."""
    body = statement.cases[0].body if isinstance(statement, ast.Match) else getattr(statement, "body", None)
    if isinstance(statement, ast.Match):
        return reader.span(statement.subject)[1]
    return reader.span(body[0])[0] if body else None


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Expressions that a statement evaluates itself: no annotations, no bodies."""
    match statement:
        case ast.AnnAssign(value=value):
            if value is not None:
                yield value
        case ast.With(items=items) | ast.AsyncWith(items=items):
            yield from (item.context_expr for item in items)
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated):
            yield iterated
        case _:
            yield from (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr))


# ── statements ────────────────────────────────────────────────────────────────────────────────


def _dropped(place: _Place, statement: ast.stmt) -> None:
    match statement:
        case ast.Return(value=None) | ast.Continue() | ast.Break() | ast.Raise():
            place.change("statement dropped", place.reader.span(statement), "pass")
        case ast.Return():
            place.change("statement dropped", place.reader.span(statement), "pass")
        case ast.AnnAssign(value=None):
            return
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.Delete():
            place.change("statement dropped", place.reader.span(statement), "pass")


def _swapped(place: _Place, statement: ast.stmt, following: ast.stmt | None) -> None:
    if following is None or _left_alone(following):
        return
    if not isinstance(statement, _SIMPLE) or not isinstance(following, _SIMPLE):
        return
    if _commute(statement, following):
        return
    reader = place.reader
    begins, ends = reader.span(statement)[0], reader.span(following)[1]
    first, second = reader.source(statement), reader.source(following)
    between = reader.text[reader.span(statement)[1] : reader.span(following)[0]]
    place.change("neighbours swapped", (begins, ends), second + between + first, first)


def _commute(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether nothing can tell which of two statements came first: such a change is none."""
    if _calls(first) and _calls(second):
        return False
    for one, other in ((first, second), (second, first)):
        # A called function may read and write whatever is no local name.
        if not _binds_only(one, names_only=_calls(other)) or _written(one) & _mentioned(other):
            return False
    return True


def _calls(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.Starred)
        or (isinstance(node, ast.Call) and not _makes_a_value(node))
        for node in ast.walk(statement)
    )


def _makes_a_value(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in _VALUES


def _binds_only(statement: ast.stmt, *, names_only: bool) -> bool:
    if _calls(statement):
        return True
    match statement:
        case ast.Assign(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case _:
            return False
    kinds: tuple[type[ast.expr], ...] = (ast.Name,) if names_only else (ast.Name, ast.Attribute)
    flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return all(isinstance(one, kinds) for one in flat)


def _written(statement: ast.stmt) -> set[str]:
    return {name for node in ast.walk(statement) if (name := _stored(node))}


def _stored(node: ast.AST) -> str:
    if not isinstance(getattr(node, "ctx", None), ast.Store):
        return ""
    return ast.unparse(node)


def _mentioned(statement: ast.stmt) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(statement) if isinstance(node, ast.Name | ast.Attribute)}


# ── expressions ───────────────────────────────────────────────────────────────────────────────


def _condition(place: _Place, test: ast.expr) -> None:
    """Of an `if`, a `while`, a guard: negated, or dropped."""
    span, source = place.reader.span(test), place.reader.source(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        place.change("condition negated", span, f"({place.reader.source(test.operand)})")
    else:
        place.change("condition negated", span, f"not ({source})")
    if not isinstance(test, ast.Constant):
        place.change("condition dropped", span, "True")


def _expression(place: _Place, node: ast.expr) -> None:
    _turned(place, node)
    _forgotten(place, node)
    if isinstance(node, ast.JoinedStr):
        return
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.comprehension(iter=iterated, ifs=ifs):
                _expression(place, iterated)
                for test in ifs:
                    _condition(place, test)
                    _expression(place, test)
            case ast.keyword(value=named):
                _expression(place, named)
            case ast.expr():
                _expression(place, child)


def _turned(place: _Place, node: ast.expr) -> None:
    match node:
        case ast.Compare():
            _compared(place, node)
        case ast.BoolOp():
            _joined(place, node)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            place.change("condition negated", place.reader.span(node), f"({place.reader.source(operand)})")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return
        case ast.IfExp(test=test):
            _condition(place, test)
        case ast.BinOp():
            _signed(place, node)
        case ast.Constant(value=bool() as value):
            place.change("constant turned", place.reader.span(node), str(not value))
        case ast.Constant(value=int() as value):
            for other in (value + 1, value - 1):
                place.change("constant ± 1", place.reader.span(node), str(other))
        case ast.Constant(value=float() as value):
            place.change("constant ± 1", place.reader.span(node), repr(value + 1.0))
            place.change("constant ± 1", place.reader.span(node), repr(value - 1.0))
        case ast.Call(func=ast.Name(id=name) as func) if name in _EXTREMES:
            place.change("function exchanged", place.reader.span(func), _EXTREMES[name])


def _compared(place: _Place, node: ast.Compare) -> None:
    left = node.left
    for op, right in zip(node.ops, node.comparators, strict=True):
        between = place.reader.span(left)[1], place.reader.span(right)[0]
        written = place.reader.text[slice(*between)]
        core = written.strip(" \n()")
        for other in _TURNED[type(op)]:
            if written.count(core) == 1:
                place.change("comparison turned", between, written.replace(core, other))
        left = right


def _joined(place: _Place, node: ast.BoolOp) -> None:
    """`and` and `or` exchanged, and each operand dropped."""
    reader = place.reader
    word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for at, (left, right) in enumerate(zip(node.values, node.values[1:], strict=False)):
        between = reader.span(left)[1], reader.span(right)[0]
        written = reader.text[slice(*between)]
        if len(node.values) == 2 and written.split().count(word) == 1:
            place.change(f"`{word}` exchanged", between, written.replace(word, other, 1))
        if at == 0:
            place.change("operand dropped", (reader.span(left)[0], reader.span(right)[0]), "")
        place.change("operand dropped", (reader.span(left)[1], reader.span(right)[1]), "")


def _signed(place: _Place, node: ast.BinOp) -> None:
    other = _SIGNS.get(type(node.op))
    if other is None or any(
        isinstance(side, ast.Constant | ast.JoinedStr)
        and not isinstance(getattr(side, "value", ""), int | float)
        for side in (node.left, node.right)
    ):
        return
    between = place.reader.span(node.left)[1], place.reader.span(node.right)[0]
    written = place.reader.text[slice(*between)]
    core = written.strip(" \n()")
    if core in {"+", "-", "*", "/", "//", "|", "&"}:
        place.change("sign turned", between, written.replace(core, other))


# ── what is forgotten ─────────────────────────────────────────────────────────────────────────


def _never(place: _Place, test: ast.expr) -> None:
    if not isinstance(test, ast.Constant):
        place.change("branch forgotten", place.reader.span(test), "False")


def _case(place: _Place, case: ast.match_case) -> None:
    """Of a `match`: the whole case, or one of its alternatives."""
    reader = place.reader
    if _unreachable(case.body[0]):
        return
    pattern = case.pattern
    if case.guard is not None:
        place.change("branch forgotten", reader.span(case.guard), "False")
    else:
        end = reader.span(pattern)[1]
        # Behind whatever closes a pattern in parentheses.
        end += reader.text[end : reader.span(case.body[0])[0]].index(":")
        place.change("branch forgotten", (end, end), " if False")
    if isinstance(pattern, ast.MatchOr):
        _each_left_out(place, "member forgotten", pattern.patterns)


def _unreachable(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))) | ast.Raise():
            return True
    return False


def _only_the_first(place: _Place, iterated: ast.expr) -> None:
    if isinstance(iterated, ast.Constant):
        return
    span, source = place.reader.span(iterated), place.reader.source(iterated)
    source = f"({source})" if isinstance(iterated, ast.Tuple) else source
    place.change("only the first", span, f"list({source})[:1]")


def _of_table(place: _Place, value: ast.expr | None) -> None:
    """A constant of a module or a class: each member of it."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    if isinstance(value, ast.Tuple):
        _choices(place, value)


def _choices(place: _Place, node: ast.expr | None) -> None:
    """Of what something may be: `(A, B)` or `A | B`."""
    match node:
        case ast.Tuple(elts=members) if len(members) > 2:
            _each_left_out(place, "member forgotten", members)
        case ast.Tuple(elts=[first, second]):
            for kept in (first, second):
                source = place.reader.source(kept)
                place.change("member forgotten", place.reader.span(node), f"({source},)")
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            _choices(place, left)
            for kept in (left, right):
                place.change("member forgotten", place.reader.span(node), place.reader.source(kept))


def _each_left_out(place: _Place, operator: str, members: Sequence[ast.expr] | Sequence[ast.pattern]) -> None:
    """Drops a member of several that stand in a row, with what parts it from the next."""
    spans = [place.reader.span(member) for member in members]
    for at, (begins, ends) in enumerate(spans):
        if at + 1 < len(spans):
            place.change(operator, (begins, spans[at + 1][0]), "")
        else:
            place.change(operator, (spans[at - 1][1], ends), "")


def _forgotten(place: _Place, node: ast.expr) -> None:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            for other in place.function.twins.get(name, ()):
                place.change("another of its type", place.reader.span(node), other)
        case ast.ListComp(generators=[first, *_]) | ast.SetComp(generators=[first, *_]):
            _of_first(place, first)
        case ast.DictComp(generators=[first, *_]) | ast.GeneratorExp(generators=[first, *_]):
            _of_first(place, first)
        case ast.Set(elts=members) | ast.List(elts=members, ctx=ast.Load()) if len(members) > 1:
            _each_left_out(place, "member forgotten", members)
        case ast.Dict(keys=keys, values=values) if len(keys) > 1 and None not in keys:
            _entries_left_out(place, [key for key in keys if key is not None], values)
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[members]):
            _choices(place, members)
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            _choices(place, kinds)
        case ast.Call():
            _argument_left_out(place, node)


def _of_first(place: _Place, generator: ast.comprehension) -> None:
    if not generator.is_async:
        _only_the_first(place, generator.iter)


def _entries_left_out(place: _Place, keys: Sequence[ast.expr], values: Sequence[ast.expr]) -> None:
    begins = [place.reader.span(key)[0] for key in keys]
    ends = [place.reader.span(value)[1] for value in values]
    for at in range(len(keys)):
        last = at + 1 == len(keys)
        span = (ends[at - 1], ends[at]) if last else (begins[at], begins[at + 1])
        # A closing parenthesis of the value before stays.
        text = place.reader.text[slice(*span)]
        if text.count("(") == text.count(")"):
            place.change("member forgotten", span, "")


def _argument_left_out(place: _Place, call: ast.Call) -> None:
    """A named argument that the function can do without: it has a default."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    optional = _defaults().get(name, ())
    nodes: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    for at, node in enumerate(nodes):
        if not isinstance(node, ast.keyword) or node.arg not in optional:
            continue
        begins = place.reader.offset(node.lineno, node.col_offset)
        ends = place.reader.span(node.value)[1]
        if at:
            before = nodes[at - 1]
            begins = place.reader.span(before.value if isinstance(before, ast.keyword) else before)[1]
        elif len(nodes) > 1:
            after = nodes[1]
            ends = place.reader.offset(after.lineno, after.col_offset)
        text = place.reader.text[begins:ends]
        if text.count("(") == text.count(")"):
            place.change("argument forgotten", (begins, ends), "")


@cache
def _defaults() -> Mapping[str, Collection[str]]:
    """The parameters that have a default, by the name of the function or the class of the product."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted((ROOT / "orchestrator").rglob("*.py")):
        for statement in statements(ast.parse(file.read_text(encoding="utf-8"))):
            match statement:
                case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args):
                    positional = [*args.posonlyargs, *args.args]
                    some = positional[len(positional) - len(args.defaults) :]
                    kept = zip(args.kwonlyargs, args.kw_defaults, strict=True)
                    found[name] |= {one.arg for one in some}
                    found[name] |= {one.arg for one, default in kept if default is not None}
                case ast.ClassDef(name=name, body=body):
                    for line in body:
                        match line:
                            case ast.AnnAssign(target=ast.Name(id=member), value=ast.expr()):
                                found[name].add(member)
    return found


def statements(module: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module and of what is in them; without expressions, which are most of a tree."""
    left: list[ast.AST] = [*module.body]
    for node in left:
        if isinstance(node, ast.stmt):
            yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, inner, ())
