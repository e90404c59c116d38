package rxe

import (
	"net/netip"
	"testing"
)

// findPortUser finds a process by a socket. It finds the kernel's rxe by a socket without a file,
// on the port of all addresses.
func TestFindPortUser(t *testing.T) {
	const head = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	line := func(local, uid, inode string) string {
		return " 1047: " + local + " 00000000:0000 07 00000000:00000000 00:00000000 00000000  " +
			uid + "        0 " + inode + " 2 0000000000000000 0\n"
	}
	addr := netip.MustParseAddr("127.0.0.2")
	for _, c := range []struct {
		name, table string
		addr        netip.Addr
		want        string
	}{
		{"nobody", head, addr, ""},
		{"another port", head + line("0200007F:12B8", "1000", "77"), addr, ""},
		{"another address", head + line("0300007F:12B7", "1000", "77"), addr, ""},
		{"a process", head + line("0300007F:12B7", "1", "7") + line("0200007F:12B7", "1000", "77"), addr, "a process of user 1000"},
		{"the kernel", head + line("00000000:12B7", "0", "0"), addr, "the kernel's rxe"},
		{"the kernel, IPv6", head + line("00000000000000000000000000000000:12B7", "0", "0"), netip.IPv6Loopback(), "the kernel's rxe"},
		{"IPv6", head + line("00000000000000000000000001000000:12B7", "3", "9"), netip.IPv6Loopback(), "a process of user 3"},
		{"nonsense", head + line("0200:12B7", "3", "9") + line("x:y", "3", "9") + "1 2\n", addr, ""},
	} {
		u, ok := findPortUser(c.table, c.addr)
		if got := u.String(); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, got, ok, c.want)
		}
	}
}
