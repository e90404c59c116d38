package viplconf

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"viaduct/internal/testkit"
	"viaduct/samehost"
	"viaduct/vi"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestParse(t *testing.T) {
	c, err := Parse([]byte(`
# two NICs
vitcp0 -> vitcp listen :3936 transfer 1M grace 50ms   # the first
fcvi0  -> fcvi  fabric 10.0.0.1:3225 address 10.0.0.2 hosts /etc/hosts.vi ptags strict port always gather off congestion reno samehost off
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{NICs: []NIC{
		{Name: "vitcp0", Provider: "vitcp", Listen: ":3936", MaxTransfer: 1 << 20, Grace: 50 * time.Millisecond},
		{Name: "fcvi0", Provider: "fcvi", Fabric: "10.0.0.1:3225", Address: "10.0.0.2", MaxTransfer: DefaultTransfer,
			Hosts: "/etc/hosts.vi", StrictPtags: true, PortAlways: true, EachPost: true,
			Congestion: "reno", SameHost: samehost.Off},
	}}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
}

func TestParse_Errors(t *testing.T) {
	for _, tc := range []struct{ line, why string }{
		{"vitcp0", "expected NAME ->"},
		{"vitcp0 -> tcp", "expected NAME ->"},
		{"vitcp0 -> vitcp listen", "no value"},
		{"vitcp0 -> vitcp listen 3936", "missing port"},
		{"vitcp0 -> vitcp listen host:3936", "unable to parse IP"},
		{"vitcp0 -> vitcp listen :99999", "is no port"},
		{"vitcp0 -> vitcp fabric 1.2.3.4:1", "takes no"},
		{"fcvi0 -> fcvi grace 1s", "takes no"},
		{"vitcp0 -> vitcp transfer 0", "at least 1"},
		{"vitcp0 -> vitcp transfer 2G", "less than 2 GiB"},
		{"vitcp0 -> vitcp transfer M", "invalid syntax"},
		{"vitcp0 -> vitcp ptags none", "takes no"},
		{"vitcp0 -> vitcp samehost no", "auto, off or require"},
		{"gather off", "expected NAME ->"},
		{"log loud", "loud"},
	} {
		_, err := Parse([]byte("# a comment\n" + tc.line))
		if err == nil || !strings.Contains(err.Error(), tc.why) || !strings.HasPrefix(err.Error(), "line 2: ") {
			t.Errorf("%q: %v, expected line 2 and %q", tc.line, err, tc.why)
		}
	}
}

// TestNames checks which addresses the names of NICs mean on a host with two interfaces, and on a
// host with loopback only. [VIA 6.4.1]
func TestNames(t *testing.T) {
	lo := netif{"lo", netip.MustParseAddr("127.0.0.1"), true}
	two := netifs{{"eth0", netip.MustParseAddr("10.0.0.1"), false}, {"ib0", netip.MustParseAddr("10.1.0.1"), false}, lo}
	none := netifs{lo}
	const unknown = "unknown"
	for _, tc := range []struct{ name, two, none string }{
		{"/dev/via_lo", "127.0.0.1", "127.0.0.1"},
		{"/etc/via_lo", "127.0.0.1", "127.0.0.1"},
		{"via_lo", "127.0.0.1", "127.0.0.1"},
		{"lo", "127.0.0.1", "127.0.0.1"},
		{"/dev/via_eth0", "", "127.0.0.1"},
		{"/dev/via_eth1", "10.1.0.1", unknown},
		{"/dev/via_eth2", unknown, unknown},
		{"/dev/via_ib0", "10.1.0.1", unknown},
		{"ib0", "10.1.0.1", unknown},
		{"/dev/clanvi0", "", "127.0.0.1"},
		{"VINIC", "", "127.0.0.1"},
		{"VINIC0", "", "127.0.0.1"},
		{"VINIC1", "10.1.0.1", unknown},
		{"VINIC2", unknown, unknown},
		{"nic0", "", "127.0.0.1"},
		{"NIC1", "10.1.0.1", unknown},
		{"/dev/via0", "", "127.0.0.1"},
		{"vitcp0", "", "127.0.0.1"},
		{`\\.\VI1`, "", "127.0.0.1"},
		{`\\.\VI2`, "10.1.0.1", unknown},
		{`\\.\VI0`, unknown, unknown},
		{"127.0.0.2", "127.0.0.2", "127.0.0.2"},
		{"::1", "::1", "::1"},
		{"", unknown, unknown},
		{"/dev/null", unknown, unknown},
		{"VINIC99999999999999999999", unknown, unknown},
	} {
		for _, on := range []struct {
			ifs  netifs
			want string
		}{{two, tc.two}, {none, tc.none}} {
			got, err := on.ifs.address(tc.name)
			if err != nil {
				if !errors.Is(err, vi.ErrInvalidParameter) {
					t.Errorf("%q: %v", tc.name, err)
				}
				got = unknown
			}
			if got != on.want {
				t.Errorf("%q with %d interfaces: %q, expected %q", tc.name, len(on.ifs), got, on.want)
			}
		}
	}
}

func TestFind(t *testing.T) {
	c, err := Parse([]byte("nic7 -> vitcp address 127.0.0.7\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := c.Find("nic7"); err != nil || d.Address != "127.0.0.7" {
		t.Errorf("nic7: %+v, %v", d, err)
	}
	if d, err := c.Find("fcvi0"); err != nil || d.Provider != "fcvi" {
		t.Errorf("fcvi0: %+v, %v", d, err)
	}
	if _, err := c.Find("other"); !errors.Is(err, vi.ErrInvalidParameter) {
		t.Errorf("a name that means nothing: %v", err)
	}
	c.NICs = append(c.NICs, NIC{Name: "*", Provider: "fcvi"})
	if d, err := c.Find("other"); err != nil || d.Provider != "fcvi" || d.Name != "other" {
		t.Errorf("a name that only * covers: %+v, %v", d, err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was asked for and is not there: %v", err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("what\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(bad); err == nil || !strings.Contains(err.Error(), bad+": line 1") {
		t.Errorf("a file that can't be read: %v", err)
	}
}

// TestOpen opens a NIC of each provider by name, and compares the attributes with the
// configuration.
func TestOpen(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("10.0.0.9 there\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse([]byte("a -> vitcp listen 127.0.0.1:0 transfer 40K hosts " + hosts + "\n" +
		"b -> fcvi listen 127.0.0.1:0 transfer 128K\nc -> vitcp address 127.0.0.3 port always ptags strict\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := New(c)
	for _, tc := range []struct {
		name     string
		transfer uint32
		mtu      uint32
	}{{"a", 40 << 10, 32 << 10}, {"b", 128 << 10, 0}, {"c", 64 << 10, 32 << 10}} {
		n, _, err := o.Open(tc.name)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		defer n.Close()
		a := n.Query()
		if a.Name != tc.name || a.MaxTransferSize != tc.transfer || tc.mtu != 0 && a.NativeMTU != tc.mtu ||
			len(a.LocalAddress) != 6 {
			t.Errorf("%s: %+v", tc.name, a)
		}
		switch tc.name {
		case "a":
			if err := n.NSInit(); err != nil {
				t.Fatal(err)
			}
			if h, err := n.NSGetHostByName(context.Background(), "there", 0); err != nil ||
				string(h) != "\x0a\x00\x00\x09" {
				t.Errorf("hosts file: %x, %v", h, err)
			}
		case "c":
			if _, err := n.RegisterMem(make([]byte, 1), vi.MemAttributes{}); !errors.Is(err, vi.ErrInvalidPtag) {
				t.Errorf("strict protection tags: %v", err)
			}
		}
	}
	if _, _, err := o.Open("nothing"); !errors.Is(err, vi.ErrInvalidParameter) {
		t.Errorf("an unknown name: %v", err)
	}
}

// TestOwnAddress: a NIC that listens at all addresses reports an address other hosts can reach, and
// names of interfaces resolve to addresses of the host. [VIA 6.6]
func TestOwnAddress(t *testing.T) {
	ifs, err := interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(ifs) == 0 || ifs[0].loopback || !ifs[0].addr.Is4() {
		t.Skip("SKIPPED: the host has no interface with an IPv4 address beside loopback")
	}
	c, err := Parse([]byte("tcp -> vitcp\nfc -> fcvi listen :0\nlo -> fcvi listen 127.0.0.1:0\nnamed -> fcvi listen :0 address 127.0.0.1\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := New(c)
	loopback := netip.MustParseAddr("127.0.0.1")
	for name, want := range map[string]netip.Addr{"tcp": ifs[0].addr, "fc": ifs[0].addr, "lo": loopback, "named": loopback} {
		n, _, err := o.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		own := vi.Address{Host: n.Query().LocalAddress}
		if ap, ok := own.AddrPort(); !ok || ap.Addr() != want {
			t.Errorf("%s is known by %v, expected %v", name, ap, want)
		}
		if err := n.NSInit(); err != nil {
			t.Fatal(err)
		}
		for _, i := range ifs {
			h, err := n.NSGetHostByName(t.Context(), i.name, 0)
			if ap, ok := (vi.Address{Host: h}).AddrPort(); err != nil || !ok || ap.Addr() != i.addr {
				t.Errorf("%s: the interface %s has the address %v, %v; expected %v", name, i.name, ap, err, i.addr)
			}
		}
	}
}

// TestOpen_Twice opens two NICs separately in a single process. The NICs must share a port, for
// waiting and for being called.
func TestOpen_Twice(t *testing.T) {
	c, err := Parse([]byte("* -> vitcp address 127.0.0.1\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := New(c)
	one, _, err := o.Open("one")
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	two, _, err := o.Open("two")
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	for _, n := range []*vi.NIC{one, two} {
		if _, err := n.ConnectWait(ctx, vi.Address{Discriminator: []byte("x")}); !errors.Is(err, vi.ErrTimeout) {
			t.Errorf("a wait: %v", err)
		}
	}
}
