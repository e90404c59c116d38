package main

import (
	"strings"
	"testing"
)

func TestCommits(t *testing.T) {
	for _, test := range []struct{ subject, body, want string }{
		{"internal/sock: make memory anew", "Because.", ""},
		{"run --rdma: serve a RoCE device by --device rxe0", "Because.", ""},
		{"iwarp: post; sdp: read", "Because.", "semicolon"},
		{"iwarp: end with a full stop.", "Because.", "imperative"},
		{"no path here", "Because.", "imperative"},
		{"iwarp: " + strings.Repeat("x", 80), "Because.", "87 characters"},
		{"iwarp: say nothing of why", " \n", "no body"},
	} {
		bad := strings.Join(checkCommits("abc\x00"+test.subject+"\x00"+test.body+"\x01\n"), "\n")
		if (bad == "") != (test.want == "") || !strings.Contains(bad, test.want) {
			t.Errorf("%q, %q: %q, want %q", test.subject, test.body, bad, test.want)
		}
	}
}

const diff = `diff --git a/a.go b/a.go
+++ b/a.go
@@ -0,0 +7,3 @@ func x() {
+	// What is missing tells of what came in vain.
+	x := "what is in code is not prose"
+	// WIDE
@@ -9 +20 @@ func y() {
+// Short.
+++ b/docs/a.md
@@ -1,0 +3,4 @@
+| a table | WIDE |
+WIDE what is in a block of code
+WIDE
+    WIDE of code
`

func TestLines(t *testing.T) {
	lines := parseDiff(strings.ReplaceAll(diff, "WIDE", strings.TrimSpace(strings.Repeat("word ", 30))), func(string) string {
		return "# A\n\n| a |\n```go\n```\n"
	})
	if len(lines) != 4 || lines[0].at != 7 || lines[1].at != 9 || lines[2].at != 20 || lines[3].at != 5 {
		t.Fatalf("%+v", lines)
	}
	bad := checkWidths(lines)
	if len(bad) != 2 || !strings.HasPrefix(bad[0], "a.go:9: ") || !strings.HasPrefix(bad[1], "docs/a.md:5: ") {
		t.Errorf("%q", bad)
	}
	counted := strings.Join(count(lines, 1), "\n")
	if !strings.Contains(counted, "a.go:7: 4 habits") {
		t.Error(counted)
	}
}
