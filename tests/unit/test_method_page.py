"""The page on the method names functions that exist."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "method.md"
LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)")


def names(tree: ast.Module) -> set[str]:
    """What a module defines: functions, classes, their methods, and constants."""
    found = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                found.update(f"{name}.{method.name}" for method in methods)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


@pytest.mark.parametrize("path", sorted({path for _, path in LINK.findall(PAGE.read_text())}))
def test_every_function_that_the_page_links_to_exists(path: str) -> None:
    linked = {name for name, where in LINK.findall(PAGE.read_text()) if where == path}

    defined = names(ast.parse((PAGE.parents[1] / path).read_text()))

    assert linked - defined == set()


def test_the_page_links_to_every_function_of_the_arithmetic() -> None:
    linked = {name for name, _ in LINK.findall(PAGE.read_text())}

    for module in ("uncertainty", "accept", "verify"):
        tree = ast.parse((PAGE.parents[1] / f"fleet/decoding/{module}.py").read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        public = {name for name in functions if not name.startswith("_")}
        aids = {"scores", "unit_codebook", "restore_features"}
        assert public - aids - linked == set()
