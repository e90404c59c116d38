package verbs

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"viaduct/internal/status"
)

// TestPsNarrow: on a terminal of 80 columns the list fits, and shows where a process listens and
// the remote address of each connection.
func TestPsNarrow(t *testing.T) {
	now := time.Now()
	v := psView{now: now}
	ps := []status.Process{{
		PID: 123456, Program: "viaduct echo", Started: now.Add(-time.Hour),
		Listeners: []status.Listener{{URL: "iwarp://127.0.0.1:17391", Transport: "iwarp", Opened: now}},
		Conns: []status.Conn{{
			Role: "accept", Local: "127.0.0.1:17391", Remote: "127.0.0.1:40022", Path: "iwarp",
			State: "open", Opened: now,
			SentBytes: 1 << 30, ReceivedBytes: 1 << 30, Credits: 16,
			Why: "the address says so, and nothing else was asked for", WhyTCP: "shared memory is turned off",
		}},
	}}
	wide := v.render(ps, size{})
	if want := "nothing else was asked for; not shared memory: shared memory is turned off"; !strings.Contains(wide, want) {
		t.Errorf("no %q in\n%s", want, wide)
	}
	for _, columns := range []int{80, 100} {
		text := v.render(ps, size{columns, 24})
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
				t.Errorf("a line of %d characters on %d columns: %q", n, columns, line)
			}
		}
		for _, want := range []string{"iwarp://127.0.0.1:17391", "127.0.0.1:40022", "listening", "open"} {
			if !strings.Contains(text, want) {
				t.Errorf("%d columns: no %q in\n%s", columns, want, text)
			}
		}
	}
	if !strings.Contains(wide, "LOCAL") || !strings.Contains(wide, "REMOTE") {
		t.Errorf("without a limit:\n%s", wide)
	}
	t.Logf("\n%s", v.render(ps, size{80, 24}))
}
