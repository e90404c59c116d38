package addr

import (
	"net"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want URL
		out  string // "" means the same as in
	}{
		{"tcp://127.0.0.1:80", URL{Scheme: "tcp", Host: "127.0.0.1", Port: 80}, ""},
		{"tcp://[::1]:0/a/b%20c", URL{Scheme: "tcp", Host: "::1", Path: "a/b c"}, ""},
		{"tcp://:9", URL{Scheme: "tcp", Port: 9}, ""},
		{"vitcp://host/disc", URL{Scheme: "vitcp", Host: "host", Port: 3936, Disc: []byte("disc")}, "vitcp://host:3936/disc"},
		{"vitcp://host:1/0x00ff/x/y?mtu=1M&flow=off", URL{Scheme: "vitcp", Host: "host", Port: 1, Disc: []byte{0, 255}, Path: "x/y"}, "vitcp://host:1/0x00ff/x/y?flow=off&mtu=1M"},
		{"vitcp://h:2/a%2Fb", URL{Scheme: "vitcp", Host: "h", Port: 2, Disc: []byte("a/b")}, "vitcp://h:2/0x612f62"},
		{"fcvi://h/d", URL{Scheme: "fcvi", Host: "h", Port: 3225, Disc: []byte("d")}, "fcvi://h:3225/d"},
		{"iwarp://[fe80::1%25eth0]:4/p", URL{Scheme: "iwarp", Host: "fe80::1%eth0", Port: 4, Path: "p"}, ""},
		{"sdp://h:80/p?portmap=h2:99", URL{Scheme: "sdp", Host: "h", Port: 80, Path: "p"}, "sdp://h:80/p?portmap=h2%3A99"},
	} {
		u, err := Parse(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		want := c.want
		want.Query = u.Query
		if !reflect.DeepEqual(*u, want) {
			t.Errorf("%s: got %+v, want %+v", c.in, *u, want)
		}
		out := c.out
		if out == "" {
			out = c.in
		}
		if u.String() != out {
			t.Errorf("%s prints as %s, want %s", c.in, u, out)
		}
		again, err := Parse(u.String())
		if err != nil || !reflect.DeepEqual(again, u) {
			t.Errorf("%s does not come back: %+v, %v", u, again, err)
		}
	}
	for _, bad := range []string{
		"", "host:80", "http://h:1", "tcp://h", "tcp://h:", "tcp://h:65536", "tcp://h:x", "tcp:h:1", "vitcp://h:1", "vitcp://h:1/",
		"vitcp://h:1/12345678901234567", "vitcp://h:1/0xzz", "vitcp://h:1/0x", "tcp://h:1?mtu=1", "vitcp://h/d?mtu=1&mtu=2", "vitcp://h/d?mtu=",
		"tcp://u@h:1", "tcp://h:1#f", "sdp://h:1?x=1", "tcp://h:1/%zz", "tcp://h:1?%zz",
	} {
		if u, err := Parse(bad); err == nil {
			t.Errorf("%q parsed as %+v", bad, u)
		}
	}
}

func TestWithPort(t *testing.T) {
	u, _ := Parse("vitcp://:0/d")
	if got := u.WithPort(&net.TCPAddr{IP: net.IPv6loopback, Port: 7}).String(); got != "vitcp://[::1]:7/d" {
		t.Error(got)
	}
	u, _ = Parse("vitcp://name:0/d")
	if got := u.WithPort(&net.TCPAddr{IP: net.IPv6loopback, Port: 7}).String(); got != "vitcp://name:7/d" {
		t.Error(got)
	}
}

func TestParameters(t *testing.T) {
	u, _ := Parse("vitcp://h/d?mtu=64K&flow=off&reliability=delivery")
	if n := u.Number("mtu", 1); n != 65536 {
		t.Error(n)
	}
	if u.Bool("flow") {
		t.Error("flow=off is on")
	}
	if s := u.Choice("reliability"); s != "delivery" {
		t.Error(s)
	}
	if n := u.Number("window", 9); n != 9 {
		t.Error(n)
	}
	bare, _ := Parse("vitcp://h/d")
	if !bare.Bool("flow") || bare.Choice("reliability") != "reception" {
		t.Error("the defaults are not those of the table")
	}
	for s, want := range map[string]uint64{"0": 0, "64": 64, "4k": 4096, "1MiB": 1 << 20, "2GB": 2 << 30, "3T": 3 << 40} {
		if n, err := ParseSize(s); n != want || err != nil {
			t.Errorf("%s: %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"", "K", "-1", "1.5M", "99999999999G"} {
		if n, err := ParseSize(s); err == nil {
			t.Errorf("%q: %d", s, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"tcp://[::1]:0/a/b%20c", "vitcp://host:1/0x00ff/x/y?mtu=1M&flow=off", "fcvi://h/d", "sdp://h:1/p?portmap=h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(u.String())
		if err != nil {
			t.Fatalf("%q prints as %q: %v", s, u, err)
		}
		if again.String() != u.String() || string(again.Disc) != string(u.Disc) ||
			again.Path != u.Path || again.Port != u.Port {
			t.Fatalf("%q: %+v came back as %+v", s, u, again)
		}
	})
}

// TestTable: every entry of the table is complete, and Parse accepts the allowed values and no
// others.
func TestTable(t *testing.T) {
	for _, s := range Schemes {
		base := s.Name + "://h:1"
		if s.HasDisc {
			base += "/d"
		}
		for _, p := range s.Params {
			if p.Default == "" || !strings.HasSuffix(p.About, ".") || strings.ToUpper(p.About[:1]) != p.About[:1] {
				t.Errorf("%s %s: no default, or no sentence about it", s.Name, p.Name)
			}
			n := func(v uint64) string { return strconv.FormatUint(v, 10) }
			good, bad := []string{p.Default}, []string{"", "#", "on off"}
			switch p.Kind {
			case Number, Size:
				good, bad = append(good, n(p.Lo), n(p.Hi)), append(bad, n(p.Hi+1), "-1", "many", "1.5")
				if p.Lo > 0 {
					bad = append(bad, n(p.Lo-1))
				}
				if p.Kind == Number {
					bad = append(bad, "1K")
				}
			case Choice:
				good, bad = append(good, p.Words...), append(bad, "perhaps")
			case HostPort:
				good, bad = append(good, "h", "h:1", "::1", "[::1]", "[::1]:9"),
					append(bad, "h:0", "h:x", "h:65536", ":1", "a/b")
			case IP:
				good, bad = append(good, "10.0.0.1", "::1"), append(bad, "h", "10.0.0")
			case WWN: // package fc parses these
				good, bad = append(good, "20:00:00:00:00:00:00:01"), []string{""}
			}
			for _, v := range good {
				if strings.HasPrefix(v, "(") {
					continue
				}
				if _, err := Parse(base + "?" + p.Name + "=" + url.QueryEscape(v)); err != nil {
					t.Error(err)
				}
			}
			for _, v := range bad {
				if _, err := Parse(base + "?" + p.Name + "=" + url.QueryEscape(v)); err == nil {
					t.Errorf("%s?%s=%s was taken", base, p.Name, v)
				}
			}
		}
	}
}

// TestSuggestions: the error about an unknown parameter suggests a similar one.
func TestSuggestions(t *testing.T) {
	for in, want := range map[string]string{
		"iwarp://h:1?crcs=on": "did you mean crc?", "vitcp://h/d?realiability=delivery": "did you mean reliability?",
		"sdp://h:1?send_policy=auto": "did you mean send-policy?", "sdp://h:1?thr=1": `"thr" (it has: portmap`, "tcp://h:1?mtu=1": "(it has: none)",
		"fcvi://h/d?stream=on": "did you mean streaming?",
	} {
		if _, err := Parse(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}
