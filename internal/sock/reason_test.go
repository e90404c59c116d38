package sock

import (
	"testing"

	"viaduct/samehost"
)

func TestReason(t *testing.T) {
	for p, want := range map[samehost.Path]string{
		{SharedMemory: true}:  "",
		{Why: WhyOff}:         "off",
		{Why: whyNotAsked}:    "not_asked",
		{Why: "user 7 is it"}: "other",
	} {
		if got := Reason(p); got != want {
			t.Errorf("%v: %q, want %q", p, got, want)
		}
	}
}
