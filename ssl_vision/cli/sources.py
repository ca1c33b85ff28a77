"""Classes, their options and their docstrings, read from source files without importing them.

Help and suggestions must not wait for torch. They therefore read the code as `ssl_vision.descriptions` does:
what a signature and a docstring state is written once, and is never imported to be shown.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import docstring_parser

_PACKAGE = "ssl_vision"


class Option(NamedTuple):
    """An option of a class.

    Args:
        name: dotted name below the class, such as "views.size".
        default: default value as it is written on the command line; None if a value is required.
        values: annotation of the argument.
        text: description of the argument, or "".
    """

    name: str
    default: str | None
    values: str
    text: str

    @property
    def sentence(self) -> str:
        """First sentence of the description."""
        return first_sentence(self.text)


@dataclass(frozen=True)
class Module:
    """A source file: what it defines, imports and assigns at its top level."""

    name: str
    file: Path

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.file.read_text(encoding="utf-8"), str(self.file))

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Values assigned to names at the top level."""
        pairs: dict[str, ast.expr] = {}
        for statement in self.tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    pairs[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    pairs[name] = value
        return pairs

    @cached_property
    def _definitions(self) -> dict[str, "Definition"]:
        return {
            node.name: Definition(self, node)
            for node in self.tree.body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        }

    @cached_property
    def _imports(self) -> dict[str, tuple[str, str]]:
        """Module and name of each name imported by ``from module import name``."""
        package = self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]
        imports: dict[str, tuple[str, str]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
                origin = ".".join([*above, *([node.module] if node.module else [])])
                imports |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
        return imports

    def find(self, name: str) -> "Definition | None":
        """Return a class or function by its name in this module, or None if another library has it."""
        if name in self._definitions:
            return self._definitions[name]
        origin, original = self._imports.get(name, ("", ""))
        if origin.partition(".")[0] not in (_PACKAGE, self.name.partition(".")[0]):
            return None
        module = read_module(origin)
        return module.find(original) if module else None

    def constant(self, name: str) -> ast.expr | None:
        """Return the value of a constant by its name in this module, or None if another library has it."""
        if name in self.constants:
            return self.constants[name]
        origin, original = self._imports.get(name, ("", ""))
        module = read_module(origin) if origin.partition(".")[0] == _PACKAGE else None
        return module.constant(original) if module else None


@dataclass(frozen=True)
class Definition:
    """A class, or a function that returns an object."""

    module: Module
    node: ast.ClassDef | ast.FunctionDef

    @property
    def name(self) -> str:
        """Name in its module."""
        return self.node.name

    @cached_property
    def ancestors(self) -> "tuple[Definition, ...]":
        """The class and its base classes, as far as their sources are known, in the order of inheritance."""
        lineage: dict[Definition, None] = {self: None}
        for base in self.node.bases if isinstance(self.node, ast.ClassDef) else ():
            definition = self.module.find(ast.unparse(base))
            lineage |= dict.fromkeys(definition.ancestors if definition else ())
        return tuple(lineage)

    @cached_property
    def is_abstract(self) -> bool:
        """True for a class with a method that subclasses must define."""
        methods: dict[str, ast.FunctionDef] = {}
        for each in reversed(self.ancestors):
            methods |= {node.name: node for node in each.node.body if isinstance(node, ast.FunctionDef)}
        return any(map(_is_abstract, methods.values()))

    @cached_property
    def texts(self) -> dict[str, str]:
        """Descriptions of the arguments, from the docstrings of the class and of its constructor."""
        nodes = (self.node, self._constructor)
        docstrings = [docstring_parser.parse(ast.get_docstring(node) or "") for node in nodes if node]
        params = [param for docstring in docstrings for param in docstring.params if param.args[0] == "param"]
        return {param.arg_name: _plain(param.description or "") for param in params}

    @property
    def sentence(self) -> str:
        """First sentence of the docstring."""
        paragraph = (ast.get_docstring(self.node) or "").partition("\n\n")[0]
        return first_sentence(_plain(paragraph))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Options on the command line; those of a dataclass follow its name and a dot."""
        flat: list[Option] = []
        for argument in self._arguments:
            nested = argument.of_dataclass
            if nested is None:
                flat.append(self._option(argument))
                continue
            settings = argument.keywords
            for option in nested.options:
                default = settings.get(option.name, option.default)
                flat.append(option._replace(name=f"{argument.name}.{option.name}", default=default))
        return tuple(flat)

    @property
    def is_dataclass(self) -> bool:
        """True if the class is decorated as a dataclass."""
        return any("dataclass" in ast.unparse(decorator) for decorator in self.node.decorator_list)

    @cached_property
    def _arguments(self) -> "list[_Argument]":
        """Arguments of the constructor, including those that it passes on to a base class."""
        constructor = self.node if isinstance(self.node, ast.FunctionDef) else self._constructor
        if constructor is None:
            inherited = _unique([each for base in self.ancestors[1:2] for each in base._arguments])
            return _unique([*inherited, *(self._fields if self.is_dataclass else ())])
        signature = constructor.args
        positional = [*signature.posonlyargs, *signature.args]
        defaults = [None] * (len(positional) - len(signature.defaults)) + list(signature.defaults)
        arguments = [*positional, *signature.kwonlyargs]
        pairs = zip(arguments, [*defaults, *signature.kw_defaults], strict=True)
        declared = [
            _Argument(self, arg.arg, arg.annotation, value) for arg, value in pairs if arg.arg != "self"
        ]
        keywords = list(_super_keywords(constructor))
        if not any(each.arg is None for each in keywords):  # none are passed on
            return declared
        passed = {each.arg for each in keywords}
        inherited = [each for base in self.ancestors[1:2] for each in base._arguments]
        return _unique([*declared, *(each for each in inherited if each.name not in passed)])

    @property
    def _constructor(self) -> ast.FunctionDef | None:
        functions = (node for node in self.node.body if isinstance(node, ast.FunctionDef))
        return next((function for function in functions if function.name == "__init__"), None)

    @property
    def _fields(self) -> "list[_Argument]":
        return [
            _Argument(self, node.target.id, node.annotation, node.value)
            for node in self.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]

    def _option(self, argument: "_Argument") -> Option:
        values = _values(argument.annotation, argument.owner.module) if argument.annotation else ""
        text = next((each.texts[argument.name] for each in self.ancestors if argument.name in each.texts), "")
        return Option(argument.name, argument.shown_default, values, text)


class _Argument(NamedTuple):
    """An argument and the class whose constructor declares it."""

    owner: Definition
    name: str
    annotation: ast.expr | None
    default: ast.expr | None

    @property
    def of_dataclass(self) -> Definition | None:
        """The dataclass of which the argument takes an instance."""
        definition = self.owner.module.find(ast.unparse(self.annotation)) if self.annotation else None
        return definition if definition and definition.is_dataclass else None

    @property
    def shown_default(self) -> str | None:
        """Default on the command line."""
        return None if self.default is None else written(self._value, self.owner.module)

    @property
    def keywords(self) -> dict[str, str]:
        """Arguments of the call that makes the default, as on the command line."""
        keywords = self._value.keywords if isinstance(self._value, ast.Call) else []
        return {str(each.arg): written(each.value, self.owner.module) for each in keywords}

    @property
    def _value(self) -> ast.expr | None:
        """The default, or the constant that it names."""
        if isinstance(self.default, ast.Name):
            return self.owner.module.constant(self.default.id) or self.default
        return self.default


@cache
def read_module(name: str) -> Module | None:
    """Return a module by its import path without importing it; None if it has no source file."""
    package, *parts = name.split(".")
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a spec, such as __main__
        spec = None
    if spec is None:
        return None
    files = [Path(spec.origin or "")]
    if parts:
        paths = [Path(folder, *parts) for folder in spec.submodule_search_locations or ()]
        files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((Module(name, file) for file in files if file.suffix == ".py" and file.is_file()), None)


def definition(path: str) -> Definition | None:
    """Return the class or function of an import path, such as ``ssl_vision.objectives.MACL``."""
    module, _, name = path.rpartition(".")
    source = read_module(module) if module else None
    return source.find(name) if source else None


@cache
def public_classes(package: str, base: str) -> dict[str, Definition]:
    """Return the classes of a package's ``__all__`` that derive from a base class, without abstract ones.

    Args:
        package: import path, such as ``ssl_vision.objectives``.
        base: name of the base class in the package.
    """
    module = read_module(package)
    root = module.find(base) if module else None
    if module is None or root is None:
        raise ValueError(f"no class {base} in {package}")
    names = ast.literal_eval(module.constants["__all__"])
    definitions = [each for name in sorted(names, key=str.lower) if (each := module.find(name))]
    return {each.name: each for each in definitions if root in each.ancestors[1:] and not each.is_abstract}


def added_options(path: str) -> Iterator[Option]:
    """Iterate over the options that a function adds by ``parser.add_argument`` with literal names and texts.

    Args:
        path: import path of the function.
    """
    function = definition(path)
    if function is None:
        raise ValueError(f"no function {path}")
    for node in ast.walk(function.node):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(name)), *_]):
                settings = {each.arg: each.value for each in node.keywords}
                text = ast.literal_eval(settings["help"])
                default = written(settings["default"], function.module)
                yield Option(name.removeprefix("--"), default, ast.unparse(settings["type"]), text)


def written(value: ast.expr | None, module: Module) -> str:
    """Write the value of an expression as on the command line, and other expressions as in the code."""
    match value:
        case None | ast.Constant(value=None):
            return "null"
        case ast.Constant(value=bool(state)):
            return str(state).lower()
        case ast.Constant(value=constant):
            return str(constant)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return f"[{', '.join(written(item, module) for item in items)}]"
        case ast.BinOp(left=ast.Constant(value=left), op=ast.Div(), right=ast.Constant(value=right)):
            return str(left / right)  # type: ignore[operator]
        case ast.Name(id=name) if name in module.constants:
            return written(module.constants[name], module)
        case ast.Call(func=function):
            return ast.unparse(function)
    return ast.unparse(value)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, with a capital letter and a full stop.

    Example:
        >>> first_sentence("width of the embeddings; 128 in the paper. Larger ones take memory.")
        'Width of the embeddings; 128 in the paper.'
    """
    ends = (match.start() + 1 for match in re.finditer(r"\. (?![a-z])", text))
    sentence = text[: next((end for end in ends if not text[:end].endswith(_ABBREVIATIONS)), len(text))]
    return capitalized(sentence if not sentence or sentence.endswith(".") else f"{sentence}.")


def capitalized(text: str) -> str:
    """Begin a text with a capital letter, unless it begins with a symbol or a name such as kNN.

    Example:
        >>> capitalized("width of the embeddings"), capitalized("kNN accuracy")
        ('Width of the embeddings', 'kNN accuracy')
    """
    return text[0].upper() + text[1:] if re.match(r"[a-z]+[ ,.:;]", text) and text[1].isalpha() else text


_ABBREVIATIONS = ("al.", "Eq.", "Fig.", "e.g.", "i.e.")


def _values(annotation: ast.expr, module: Module) -> str:
    """Write an annotation as the values that it stands for; "class" where an object is expected."""
    text = re.sub(
        r"\w+",
        lambda match: ast.unparse(alias) if (alias := module.constant(match[0])) else match[0],
        ast.unparse(annotation),
    )
    if "Callable" in text or "nn.Module" in text:
        return "class"
    literals = re.sub(r"Literal\[(.*?)\]", lambda match: match[1].replace("'", ""), text)
    return literals.replace("None", "null")


def _plain(text: str) -> str:
    """Remove line breaks and the marks of code."""
    return " ".join(text.split()).replace("`", "")


def _is_abstract(method: ast.FunctionDef) -> bool:
    if any(ast.unparse(each).endswith("abstractmethod") for each in method.decorator_list):
        return True
    match method.body[-1]:
        case ast.Raise(exc=ast.Name(id="NotImplementedError")):
            return True
    return False


def _super_keywords(constructor: ast.FunctionDef) -> Iterator[ast.keyword]:
    """Iterate over the keyword arguments of ``super().__init__(...)``."""
    for node in ast.walk(constructor):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__":
            yield from node.keywords


def _unique(arguments: "list[_Argument]") -> "list[_Argument]":
    """Drop arguments that are declared again by a subclass, whose declaration counts."""
    return list({each.name: each for each in arguments}.values())
