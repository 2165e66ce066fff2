"""Tests of tools/layers.py: each rule on a small tree that breaks it, and code that must not be mistaken."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent / "layers.py"
sys.path.insert(0, str(TOOL.parent))
import layers  # noqa: E402


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.write("src/base/error.h", "#pragma once\n#include <fmt/format.h>\n")
        self.write("src/base/view.h", "#pragma once\n")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_tool(self):
        done = subprocess.run([sys.executable, TOOL, self.root], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    def expect(self, *starts):
        status, lines = self.run_tool()
        self.assertEqual(len(lines), len(starts), lines)
        for line, start in zip(lines, starts):
            self.assertTrue(line.startswith(start), f"{line!r} does not start with {start!r}")
        errors = [s for s in starts if "warning" not in s]
        self.assertEqual(status, 1 if errors else 0)


class Includes(Tree):
    def test_layer_above_is_allowed(self):
        self.write("src/formats/config.h", '#pragma once\n#include "base/error.h"\n')
        self.write("src/cli/run.cpp", '#include "formats/config.h"\n')
        self.expect()

    def test_layer_below_is_named_with_file_and_line(self):
        self.write("src/formats/config.h", "#pragma once\n")
        self.write("src/base/x.cpp", '\n#include "formats/config.h"\n')
        self.expect('src/base/x.cpp:2: src/base/ includes "formats/config.h", but may include from nothing only')

    def test_trace_may_use_base_and_formats_only(self):
        self.write("src/text/t.h", "#pragma once\n")
        self.write("src/trace/x.cpp", '#include "base/view.h"\n#include "text/t.h"\n')
        self.expect("src/trace/x.cpp:2:")

    def test_missing_file_and_unknown_folder(self):
        self.write("src/base/x.cpp", '#include "base/none.h"\n')
        self.write("src/extra/y.cpp", '#include "base/view.h"\n')
        self.expect('src/base/x.cpp:1: "base/none.h" is not a file', "src/extra/y.cpp:1: src/extra/ is no layer")

    def test_tests_beside_the_source_may_use_more(self):
        self.write("src/formats/config.h", "#pragma once\n")
        self.write("src/ops/a/a_test.cpp", '#include "formats/config.h"\n')
        self.write("src/ops/a/a_cpu.cpp", '#include "formats/config.h"\n')
        self.expect("src/ops/a/a_cpu.cpp:1:")

    def test_commented_include_does_not_count(self):
        self.write("src/formats/config.h", "#pragma once\n")
        self.write("src/base/x.cpp", '// #include "formats/config.h"\n')
        self.expect()

    def test_heavy_header_in_our_header(self):
        self.write("src/base/x.h", "#pragma once\n#include <nlohmann/json.hpp>\n")
        self.write("src/base/y.h", "#pragma once\n#include <nlohmann/json_fwd.hpp>\n")
        self.expect("src/base/x.h:2: <nlohmann/json.hpp> is slow")

    def test_device_code_finds_third_party_headers_through_ours(self):
        self.write("src/ops/a.cu", '#include "base/view.h"\n#include "base/error.h"\n')
        self.expect("src/ops/a.cu:2: device code includes <fmt/format.h> through src/base/error.h")


class Headers(Tree):
    def test_pragma_once_and_using_namespace(self):
        self.write("src/base/x.h", "// using namespace in a comment is fine\nusing namespace std;\n")
        self.expect("src/base/x.h:1: header without #pragma once", "src/base/x.h:2: using namespace")

    def test_using_namespace_in_source_is_allowed(self):
        self.write("src/base/x.cpp", "using namespace std;\n")
        self.expect()


class Sizes(Tree):
    def test_file_warning_then_error(self):
        self.write("src/base/a.cpp", "\n" * 500)
        self.write("src/base/b.cpp", "\n" * 501)
        self.write("src/base/c.cpp", "\n" * 601)
        self.expect("src/base/b.cpp:501: warning", "src/base/c.cpp:601: 601 lines in the file")

    def test_function_limit(self):
        body = "  x();\n" * 118
        self.write("src/base/a.cpp", "namespace n {\nvoid fits() {\n" + body + "}\n}\n")
        self.write("src/base/b.cpp", "namespace n {\n\nvoid\nlonger() {\n" + body + "}\n}\n")
        self.expect("src/base/b.cpp:3: longer has 121 lines")

    def test_class_and_table_are_not_functions(self):
        many = "  int f() const { return 1; }\n" * 200
        self.write("src/base/a.cpp", "class A : public B<int> {\n public:\n" + many + "};\n")
        self.write("src/base/b.cpp", "constexpr int table[] = {\n" + "  f(1),\n" * 200 + "};\n")
        self.expect()


class Functions(unittest.TestCase):
    def found(self, text):
        return [(first, last, name) for first, last, name in layers.functions(layers.without_comments(text))]

    def test_member_initialisers_with_braces(self):
        text = "A::A(int x)\n    : a_{x}, b_(x), c_{1, 2} {\n  f();\n}\nint g() {\n}\n"
        self.assertEqual(self.found(text), [(1, 4, "A::A"), (5, 6, "g")])

    def test_braces_in_strings_comments_and_characters(self):
        text = "void f() {\n  g(\"}\", '}', 1'000); // }\n  /* } */ h(R\"x(}\")x\");\n}\nvoid k() {}\n"
        self.assertEqual(self.found(text), [(1, 4, "f"), (5, 5, "k")])

    def test_templates_operators_and_qualifiers(self):
        text = ("template <typename T>\n  requires(sizeof(T) == 1)\nauto f(T t) -> int {\n}\n"
                "struct S {\n  bool operator==(const S& o) const noexcept {\n  }\n private:\n  int h() && {\n  }\n};\n")
        self.assertEqual([name for _, _, name in self.found(text)][1:], ["operator==", "h"])
        self.assertEqual([(a, b) for a, b, _ in self.found(text)], [(1, 4), (6, 7), (9, 10)])

    def test_test_case_counts_as_function(self):
        self.assertEqual(self.found("TEST(A, B) {\n  if (x) {\n  }\n}\n"), [(1, 4, "TEST")])


if __name__ == "__main__":
    unittest.main()
