"""The renderer, held against what Go's text/template and Sprig say of themselves."""

from __future__ import annotations

import pytest

from tests.deploy.helm.chart import FUNCTIONS, merged
from tests.deploy.helm.template import Renderer, TemplateError

DOT = {"a": "x", "n": 3, "big": 1_000_000, "yes": True, "list": ["p", "q"], "map": {"k": "v"}}


def render(source: str) -> str:
    renderer = Renderer(FUNCTIONS)
    return renderer.render(renderer.define(source), DOT)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # From the documentation of text/template.
        ("{{23 -}} < {{- 45}}", "23<45"),
        ('{{"output"}}', "output"),
        ("{{`output`}}", "output"),
        ('{{printf "%s" "output"}}', "output"),
        ('{{"output" | printf "%s"}}', "output"),
        ('{{printf "%s" (print_out "put")}}', None),
        ('{{"put" | printf "%s%s" "out" | quote}}', '"output"'),
        ('{{with "output"}}{{quote .}}{{end}}', '"output"'),
        ('{{with $x := "output" | quote}}{{$x}}{{end}}', None),
        ("{{/* a comment */}}", ""),
        ("{{- /* a comment with white space trimmed */ -}}", ""),
        # The rest.
        ("a {{- /* b */ -}} c", "ac"),
        ("a\n{{- if .yes }}\nb\n{{- else }}\nc\n{{- end }}\nd", "a\nb\nd"),
        ("{{if .yes}}{{if false}}1{{else if .a}}2{{end}}{{else}}3{{end}}", "2"),
        ("{{range .list}}<{{.}}{{$.a}}>{{end}}", "<px><qx>"),
        ('{{range list "a" "b"}}{{.}}{{end}}', "ab"),
        ("{{with .map}}{{.k}}{{$.n}}{{end}}", "v3"),
        ('{{with ""}}1{{else}}{{.a}}{{end}}', "x"),
        ("{{$x := .n}}{{if true}}{{$x}}{{end}}", "3"),
        ('{{define "t"}}[{{.k}}]{{end}}{{include "t" .map | nindent 2}}', "\n  [v]"),
        ('{{include "u" (dict "k" .a)}}{{define "u"}}{{.k}}{{end}}', "x"),
        ("{{toYaml .map}}", "k: v"),
        ("{{.list | toYaml | indent 2}}", "  - p\n  - q"),
        ('{{default "d" ""}}{{default "d" .a}}', "dx"),
        ("{{and .yes .a}}{{or false .n}}{{not .yes}}", "x3false"),
        ("{{add 1 .n 2}} {{div 7 2}} {{eq .n 3}} {{gt .n 3}}", "6 3 true false"),
        ('{{"abc" | trunc 2}}{{"a-" | trimSuffix "-"}}', "aba"),
        (
            '{{"abc" | sha256sum}}',  # FIPS 180-2, appendix B.1
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        ("{{.gone}}", None),
        ("{{.a.b}}", None),
        ("{{.big}}", None),
        ("{{.list}}", None),
        ("{{if .yes}}", None),
        ("{{end}}", None),
        ('{{eq .n "3"}}', None),
        ('{{include "nothing" .}}', None),
        ('{{fail "no"}}', None),
        ('{{required "there must be one" ""}}', None),
    ],
)
def test_it_renders(source: str, text: str | None) -> None:
    """None: it is refused."""
    if text is None:
        with pytest.raises((TemplateError, TypeError)):
            render(source)
    else:
        assert render(source) == text


def test_values_are_merged_as_helm_does() -> None:
    values = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert merged(values, {"a": {"c": [3]}, "d": None}) == {"a": {"b": 1, "c": [3]}}
    assert values["a"] == {"b": 1, "c": [1, 2]}
