package addr

import (
	"net"
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want URL
		out  string // "" is the same as in
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
	if n, err := u.Bytes("mtu", 1, 1, 1<<20); n != 65536 || err != nil {
		t.Error(n, err)
	}
	if _, err := u.Bytes("mtu", 1, 1, 100); err == nil {
		t.Error("range not checked")
	}
	if b, err := u.Bool("flow", true); b || err != nil {
		t.Error(b, err)
	}
	if s, err := u.Choice("reliability", "", "reception", "delivery"); s != "delivery" || err != nil {
		t.Error(s, err)
	}
	if _, err := u.Choice("reliability", "", "x"); err == nil {
		t.Error("choice not checked")
	}
	if n, _ := u.Bytes("window", 9, 0, 100); n != 9 {
		t.Error(n)
	}
	for s, want := range map[string]uint64{"0": 0, "64": 64, "4k": 4096, "1MiB": 1 << 20, "2GB": 2 << 30} {
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
		if again.String() != u.String() || string(again.Disc) != string(u.Disc) || again.Path != u.Path || again.Port != u.Port {
			t.Fatalf("%q: %+v came back as %+v", s, u, again)
		}
	})
}
