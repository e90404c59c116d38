package fabric

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"viaduct/internal/fc"
)

// hexBytes returns the bytes of hexadecimal digits, with spaces at field borders. "4*00" means 00
// four times.
func hexBytes(t testing.TB, s string) (b []byte) {
	t.Helper()
	for _, w := range strings.Fields(s) {
		n := 1
		if count, rest, ok := strings.Cut(w, "*"); ok {
			n, w = int(count[0]-'0'), rest
			if len(count) == 2 {
				n = n*10 + int(count[1]-'0')
			}
		}
		v, err := hex.DecodeString(w)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, bytes.Repeat(v, n)...)
	}
	return b
}

// TestNameServer sends requests of several ports to the name server. It compares the Common
// Transport header, commands and reason codes byte by byte with FC-GS and RFC 4338. Domain 3 is
// unreachable. [FCVI-7.6-5] [FCFS-2.11-2]
func TestNameServer(t *testing.T) {
	const a, b, far, lost = 0x010100, 0x010200, 0x020304, 0x030100
	// The fields of a request are revision, IN_ID, GS_Type, GS_Subtype, options; command, maximum
	// size; reserved, reason, explanation, vendor.
	req := func(cmd, body string) string { return "01 000000 fc 02 00 00 " + cmd + " 0000 00 00 00 00 " + body }
	accepted := func(body string) string { return "01 000000 fc 02 00 00 8002 0000 00 00 00 00 " + body }
	rejected := func(reason, explanation string) string {
		return "01 000000 fc 02 00 00 8001 0000 00 " + reason + " " + explanation + " 00"
	}
	const (
		portA, nodeA = "1000020000000001", "2000020000000001"
		portB, nodeB = "1000020000000002", "2000020000000002"
		ipA          = "10*00 ffff 0a000001"
		ipB          = "10*00 ffff 0a000002"
		types        = "00000120 28*00" // FCP is bit 8 and IP is bit 5 of the first word
		unable       = "09"
		noID         = "01"
		noPort       = "02"
		noNode       = "03"
		noNodeIP     = "05"
		noTypes      = "07"
		noPortIP     = "0b"
		logical      = "03"
		unsupported  = "0b"
		version      = "02"
	)
	d := new(directory)
	d.init()
	live := func(domain uint8) bool { return domain != 3 }
	for _, c := range []struct {
		name      string
		from      fc.Addr
		req, want string
		told      fc.Addr // address of the port whose change is announced
	}{
		// At first nothing is registered.
		{"GPN_ID", a, req("0112", "00 010100"), rejected(unable, noID), 0},
		{"GID_PN of nothing", a, req("0121", "8*00"), rejected(unable, noPort), 0},
		{"RIP_NN before the name", a, req("0235", nodeA+" "+ipA), rejected(unable, noNode), 0},
		{"RSNN_NN before the name", a, req("0239", nodeA+" 01 61 00 00"), rejected(unable, noNode), 0},
		{"DA_ID", a, req("0300", "00 010100"), accepted(""), 0},

		// Registrations, including optional ones, follow. A change of the types or of the node's
		// address is announced.
		{"RPN_ID", a, req("0212", "00 010100 "+portA), accepted(""), 0},
		{"GNN_ID without a name", a, req("0113", "00 010100"), rejected(unable, noNode), 0},
		{"GFT_ID without types", a, req("0117", "00 010100"), rejected(unable, noTypes), 0},
		{"GIPP_ID without an address", a, req("011b", "00 010100"), rejected(unable, noPortIP), 0},
		{"GID_NN of nothing", a, req("0131", "8*00"), rejected(unable, noNode), 0},
		{"GID_IPP of nothing", a, req("01b1", "16*00"), rejected(unable, noPortIP), 0},
		{"RNN_ID", a, req("0213", "00 010100 "+nodeA), accepted(""), 0},
		{"GNN_IP of nothing", a, req("0153", "16*00"), rejected(unable, noNodeIP), 0},
		{"RFT_ID", a, req("0217", "00 010100 "+types), accepted(""), a},
		{"RIPP_ID", a, req("021b", "00 010100 "+ipA), accepted(""), 0},
		{"RIP_NN", a, req("0235", nodeA+" "+ipA), accepted(""), a},
		{"RIP_NN of another", a, req("0235", nodeB+" "+ipA), rejected(unable, noNode), 0},
		{"RSNN_NN", a, req("0239", nodeA+" 01 61 00 00"), accepted(""), 0},
		{"RSNN_NN of another", a, req("0239", nodeB+" 01 61 00 00"), rejected(unable, noNode), 0},
		{"RFF_ID", a, req("021f", "00 010100 0000 02 08"), accepted(""), 0},
		{"RCS_ID", a, req("0214", "00 010100 00000008"), accepted(""), 0},
		{"RSPN_ID", a, req("0218", "00 010100 01 61 00 00"), accepted(""), 0},
		{"RPT_ID", a, req("021a", "00 010100 01 00 00 00"), accepted(""), 0},
		{"of another port", a, req("0212", "00 010200 "+portA), rejected(unable, noID), 0},
		{"DA_ID of another port", b, req("0300", "00 010100"), rejected(unable, noID), 0},

		// The queries below come from a port without registrations.
		{"GPN_ID", b, req("0112", "00 010100"), accepted(portA), 0},
		{"GNN_ID", b, req("0113", "00 010100"), accepted(nodeA), 0},
		{"GFT_ID", b, req("0117", "00 010100"), accepted(types), 0},
		{"GIPP_ID", b, req("011b", "00 010100"), accepted(ipA), 0},
		{"GID_PN", b, req("0121", portA), accepted("00 010100"), 0},
		{"GID_PN of another", b, req("0121", portB), rejected(unable, noPort), 0},
		{"GID_NN", b, req("0131", nodeA), accepted("80 010100"), 0},
		{"GID_NN of another", b, req("0131", nodeB), rejected(unable, noNode), 0},
		{"GNN_IP", b, req("0153", ipA), accepted(nodeA), 0},
		{"GNN_IP of another", b, req("0153", ipB), rejected(unable, noNodeIP), 0},
		{"GID_IPP", b, req("01b1", ipA), accepted("80 010100"), 0},
		{"GID_IPP of another", b, req("01b1", ipB), rejected(unable, noPortIP), 0},

		// Lists are ordered by address, and the last entry is marked. A scope is a domain, or a
		// domain and an area. Types are given by their number.
		{"RFT_ID", far, req("0217", "00 020304 "+types), accepted(""), far},
		{"RFT_ID", b, req("0217", "00 010200 4*00 00000001 24*00"), accepted(""), b},
		{"GPN_ID without a name", a, req("0112", "00 010200"), rejected(unable, noPort), 0},
		{"GID_PN of no name", a, req("0121", "8*00"), rejected(unable, noPort), 0},
		{"GID_FT", b, req("0171", "00 00 00 08"), accepted("00 010100 80 020304"), 0},
		{"GID_FT in a domain", b, req("0171", "00 02 00 08"), accepted("80 020304"), 0},
		{"GID_FT in another", b, req("0171", "00 04 00 08"), rejected(unable, noTypes), 0},
		{"GID_FT in an area", b, req("0171", "00 00 01 05"), accepted("80 010100"), 0},
		{"GID_FT in an area of a domain", b, req("0171", "00 02 03 05"), accepted("80 020304"), 0},
		{"GID_FT in another area", b, req("0171", "00 02 01 05"), rejected(unable, noTypes), 0},
		{"GID_FT of type 32", a, req("0171", "00 00 00 20"), accepted("80 010200"), 0},
		{"GID_FT of a type without ports", a, req("0171", "00 00 00 58"), rejected(unable, noTypes), 0},

		// Changes of unreachable ports are not announced.
		{"RPN_ID", lost, req("0212", "00 030100 "+portB), accepted(""), 0},
		{"RNN_ID", lost, req("0213", "00 030100 "+nodeB), accepted(""), 0},
		{"RIPP_ID", lost, req("021b", "00 030100 "+ipB), accepted(""), 0},
		{"RIP_NN", lost, req("0235", nodeB+" "+ipB), accepted(""), lost},
		{"GPN_ID, lost", a, req("0112", "00 030100"), rejected(unable, noID), 0},
		{"GID_PN, lost", a, req("0121", portB), rejected(unable, noPort), 0},
		{"GID_NN, lost", a, req("0131", nodeB), rejected(unable, noNode), 0},
		{"GNN_IP, lost", a, req("0153", ipB), rejected(unable, noNodeIP), 0},
		{"GID_IPP, lost", a, req("01b1", ipB), rejected(unable, noPortIP), 0},

		// A node IP address without a Node_Name gives no answer.
		{"RNN_ID of no name", a, req("0213", "00 010100 8*00"), accepted(""), 0},
		{"GNN_IP of no name", b, req("0153", ipA), rejected(unable, noNodeIP), 0},

		// The requester's limit is in words. The omitted part is counted as residual size.
		{"GID_FT with a limit", b, "01 000000 fc 02 00 00 0171 0001 00 00 00 00 00 00 00 08", "01 000000 fc 02 00 00 8002 0001 00 00 00 00 00 010100", 0},
		{"GID_FT with room", b, "01 000000 fc 02 00 00 0171 0002 00 00 00 00 00 00 00 08", accepted("00 010100 80 020304"), 0},

		// The removal of a record is announced once.
		{"DA_ID", a, req("0300", "00 010100"), accepted(""), a},
		{"DA_ID again", a, req("0300", "00 010100"), accepted(""), 0},
		{"GPN_ID after DA_ID", b, req("0112", "00 010100"), rejected(unable, noID), 0},

		// These requests are invalid.
		{"unknown command", a, req("0999", "00 010100"), rejected(unsupported, "00"), 0},
		{"another revision", a, "02 000000 fc 02 00 00 0112 0000 00 00 00 00 00 010100", rejected(version, "00"), 0},
		{"another service", a, "01 000000 fa 02 00 00 0112 0000 00 00 00 00 00 010100", "01 000000 fa 02 00 00 8001 0000 00 0b 00 00", 0},
		{"another server", a, "01 000000 fc 03 00 00 0112 0000 00 00 00 00 00 010100", "01 000000 fc 03 00 00 8001 0000 00 0b 00 00", 0},
		{"torn header", a, "01 000000 fc 02 00 00 0112 0000 00 00 00", "", 0},
	} {
		got, told := d.request(c.from, hexBytes(t, c.req), live)
		if want := hexBytes(t, c.want); !bytes.Equal(got, want) || told != c.told {
			t.Errorf("%s by %v: %x, told of %v; want %x, %v", c.name, c.from, got, told, want, c.told)
		}
	}

	// A body a byte too short is a logical error. A body of the right length is not.
	for cmd, n := range map[string]int{
		"0112": 4, "0113": 4, "0117": 4, "011b": 4, "0121": 8, "0131": 8, "0153": 16, "0171": 4, "01b1": 16,
		"0212": 12, "0213": 12, "0214": 4, "0217": 36, "0218": 4, "021a": 4, "021b": 20, "021f": 4, "0235": 24, "0239": 9, "0300": 4,
	} {
		body := append(hexBytes(t, "00 010100"), make([]byte, 40)...)
		for _, short := range []bool{true, false} {
			size := n
			if short {
				size--
			}
			got, _ := d.request(a, append(hexBytes(t, req(cmd, "")), body[:size]...), live)
			if want := hexBytes(t, rejected(logical, "00")); bytes.Equal(got, want) != short {
				t.Errorf("command %s with %d bytes: %x", cmd, size, got)
			}
		}
	}
}
