package ladder

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/cmd/viaduct/internal/pcapng"
	"viaduct/internal/wire/ib"
)

// TestRoCE: the states of a RoCEv2 connection follow connection management, until a NAK ends the
// connection.
func TestRoCE(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcapng")
	c, err := pcapng.Create(file, "test")
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")}
	say := func(from int, p ib.Packet) {
		p.PKey = ib.DefaultPKey
		flow := ib.Flow{Source: ends[from], Destination: ends[1-from]}
		c.RoCE(from == 0, ends[from], ends[1-from], flow.Seal(p.Append(nil)))
	}
	manage := func(from int, m ib.CM) {
		say(from, ib.Packet{BTH: ib.BTH{Opcode: ib.SendOnly.On(ib.UD), QPN: ib.ManagementQPN},
			DETH: ib.DETH{QKey: ib.ManagementQKey, SourceQPN: ib.ManagementQPN}, Payload: m.Append(nil)})
	}
	manage(0, ib.CM{Kind: ib.CMReq, Req: ib.CMRequest{ServiceID: ib.IPServiceID(0x106, 7174),
		QPN: 17, PSN: 5, PKey: ib.DefaultPKey}})
	manage(1, ib.CM{Kind: ib.CMRep, Rep: ib.CMReply{QPN: 18, PSN: 100}})
	manage(0, ib.CM{Kind: ib.CMRTU})
	say(0, ib.Packet{BTH: ib.BTH{Opcode: ib.ReadRequest, QPN: 18, PSN: 5, AckReq: true}, RETH: ib.RETH{Length: 4000}})
	say(1, ib.Packet{BTH: ib.BTH{Opcode: ib.Acknowledge, QPN: 17, PSN: 5}, AETH: ib.AETH{Syndrome: ib.NAKSequence}})
	say(1, ib.Packet{BTH: ib.BTH{Opcode: ib.Acknowledge, QPN: 17, PSN: 5}, AETH: ib.AETH{Syndrome: ib.NAKRemoteAccess}})
	manage(0, ib.CM{Kind: ib.CMDReq, QPN: 18})
	manage(1, ib.CM{Kind: ib.CMDRep})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := build(t, Options{}, "", b).WriteText(&text); err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, want := range []string{
		"[Requesting] |", "REQ  service 0x1061c06, QP 0x11, PSN 5 ", "| [Requested]", "REP  QP 0x12, PSN 100 ", "| [Replied]",
		"[Connected] |", "| [Connected]", "RC RDMA Read Request  length 4000, PSN 5, to QP 0x12 ",
		"NAK PSN sequence error", "[Error] |", "NAK remote access error, PSN 5, to QP 0x11", "| [Error]",
		"[Disconnecting] |", "[Disconnected] |", "| [Disconnected]",
	} {
		i := strings.Index(text.String()[at:], want)
		if i < 0 {
			t.Fatalf("no %q after %d bytes of\n%s", want, at, text.String())
		}
		at += i
	}
}
