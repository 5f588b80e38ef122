"""Small changes of functions, such as ``<`` for ``<=``, which tests should notice."""

import ast
import copy
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
COMPARISONS |= {ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}
OPERATORS |= {ast.BitXor: ast.BitOr, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift}
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}
TEXTS = {"left": "right", "right": "left"}


@dataclass(frozen=True)
class Mutant:
    """A change of one node of a function: the `variant`-th one of its node `number`, which is in line `at`."""

    path: str
    function: int
    number: int
    variant: int
    at: int
    before: str
    after: str

    @property
    def line(self) -> str:
        """The line of source that is changed."""
        return Path(self.path).read_text().splitlines()[self.at - 1].strip()

    def code(self) -> types.CodeType | None:
        """Return the code of the changed function; None if Python does not keep it, as that of a branch not taken."""
        tree = ast.parse(Path(self.path).read_text())
        function = next(each for each in _functions(tree) if each.lineno == self.function)
        _changes(list(_nodes(function))[self.number])[self.variant]()
        return _code_of(compile(ast.fix_missing_locations(tree), self.path, "exec"), function)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield each change of each function of a module, alone."""
    for function in _functions(ast.parse(path.read_text())):
        for number, node in enumerate(_nodes(function)):
            for variant in range(len(_changes(node))):
                changed = copy.deepcopy(node)
                _changes(changed)[variant]()
                yield Mutant(str(path), function.lineno, number, variant, node.lineno, _text(node), _text(changed))


def marked(path: Path) -> Iterator[types.CodeType]:
    """Yield the code of each function of a module, which calls ``hit((path, line))`` before each statement."""
    tree = ast.parse(path.read_text())
    functions = list(_functions(tree))
    for function in functions:
        for node in list(ast.walk(function)):
            for name in ("body", "orelse", "finalbody"):
                if isinstance(statements := getattr(node, name, None), list):
                    setattr(node, name, [each for of in statements for each in (_hit(path, of), of)])
    code = compile(ast.fix_missing_locations(tree), str(path), "exec")
    yield from filter(None, (_code_of(code, function) for function in functions))


def _hit(path, statement):
    place = ast.Constant((str(path), statement.lineno))
    call = ast.Expr(ast.Call(ast.Name("hit", ast.Load()), [place], []))
    return ast.copy_location(call, statement)


def statements(path: Path) -> dict[int, int]:
    """Return the first line of the statement that each line is a part of."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):  # those inside come after those around them
        if isinstance(node, ast.stmt):
            found |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), node.lineno)
    return found


def _functions(tree):
    """Yield the outermost functions: those of modules and classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, (ast.ClassDef, ast.If, ast.With)):
            yield from _functions(node)


def _nodes(function):
    """Yield the nodes of a body, except for what is said in errors and logs, and what is only for readers."""
    waiting = function.body[::-1]
    while waiting:
        node = waiting.pop()
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.AnnAssign):
            waiting += [node.value] if node.value is not None else []
            continue
        yield node
        # Annotations, also those of functions inside, are not evaluated.
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        waiting += [child for child in ast.iter_child_nodes(node) if child not in annotations][::-1]


def _changes(node):  # noqa: C901  a case a kind of node
    """Return functions, each of which changes a node in one way."""
    found = []
    if isinstance(node, ast.Compare):
        for i, each in enumerate(node.ops):
            if type(each) in COMPARISONS:
                found.append(lambda i=i, each=each: node.ops.__setitem__(i, COMPARISONS[type(each)]()))
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
        found.append(lambda: setattr(node, "op", OPERATORS[type(node.op)]()))
    elif isinstance(node, ast.BoolOp):
        found.append(lambda: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found.append(lambda: setattr(node, "op", ast.UAdd()))
    elif isinstance(node, (ast.If, ast.IfExp)) and not isinstance(node.test, (ast.Compare, ast.BoolOp)):
        found.append(lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        found.append(lambda: setattr(node, "value", not node.value))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        found.append(lambda: setattr(node, "value", node.value + 1))
    elif isinstance(node, ast.Constant) and node.value in TEXTS:
        found.append(lambda: setattr(node, "value", TEXTS[node.value]))
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        found.append(lambda: setattr(node, "attr", NAMES[node.attr]))
    elif isinstance(node, ast.Name) and node.id in NAMES:
        found.append(lambda: setattr(node, "id", NAMES[node.id]))
    return found


def _code_of(code, function):
    """Return the code of a function in that of its module."""
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            if each.co_name == function.name and each.co_firstlineno == first:
                return each
            if found := _code_of(each, function):
                return found
    return None


def _text(node):
    if isinstance(node, (ast.If, ast.IfExp)):
        return f"if {ast.unparse(node.test)}"
    return ast.unparse(node)
