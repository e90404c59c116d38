package decode

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"viaduct/cmd/viaduct/internal/exchange"
	"viaduct/cmd/viaduct/internal/pcapng"
	"viaduct/internal/wire/portmapwire"
	"viaduct/internal/wire/sdpwire"
	"viaduct/internal/wire/vitcpwire"
)

// TestDissectors compares every field of every message, of all protocols, with the output of tshark
// and the Lua dissectors. The captures are exchanges of our engines, and messages of every type.
func TestDissectors(t *testing.T) {
	shark := newShark(t)
	captures := map[string][]byte{
		"all of VI/TCP": allVITCP(t), "all of SDP": allSDP(t, sdpwire.Figure), "all of SDP, IBTA": allSDP(t, sdpwire.IBTA), "Port Mapper": allPortmap(t),
		"RoCEv2 over IPv4": allRoCE(t, "IPv4"), "RoCEv2 over IPv6": allRoCE(t, "IPv6"),
	}
	for _, x := range exchange.All() {
		r, err := x.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		captures[x.Name] = r.Capture
	}
	compared := make(map[string]int)
	for _, name := range slices.Sorted(maps.Keys(captures)) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.pcapng")
			if err := os.WriteFile(file, captures[name], 0o600); err != nil {
				t.Fatal(err)
			}
			for k, n := range agree(t, shark, file, captures[name]).Fields {
				compared[k] += n
			}
		})
	}
	for _, k := range []string{
		"sdp.mid", "sdp.layout", "sdp.mode", "sdp.s", "sdp.stag", "sdp.va", "sdp.non_discards", "sdp.port", "sdp.flags", "sdp.act_rcv_sz", "sdp.des_rem_rcv_sz",
		"vitcp.type", "vitcp.address", "vitcp.attributes", "vitcp.calling", "vitcp.error", "vitcp.immediate", "vitcp.reason",
		"portmap.type", "portmap.handle", "portmap.cp", "fcvi.opcode", "fcvi.rmt_va", "fcvi.tot_len", "fcvi.msg_id",
		"mpa.rev", "ddp.stag", "ddp.msn", "rdmap.opcode", "rdmap.size", "fc.ox_id", "fc.f_ctl", "fc.sof", "fc.els", "fcip.length", "fcip.source",
		"bth.opcode", "bth.pad", "bth.psn", "deth.qkey", "reth.va", "atomic.compare", "atomic_ack.value", "aeth.syndrome", "imm.data", "ieth.rkey",
		"cm.tid", "cm.service_id", "cm.qpn",
	} {
		if compared[k] == 0 {
			t.Errorf("no message had %s", k)
		}
	}
}

// allSDP returns a capture with every message of SDP after Hello and HelloAck.
func allSDP(t *testing.T, l sdpwire.Layout) []byte {
	c := &sdpTalk{talk: newTalk(), layout: l}
	c.greet()
	for i, mid := range []sdpwire.MID{
		sdpwire.Data, sdpwire.SrcAvail, sdpwire.SinkAvail, sdpwire.SendSm, sdpwire.RdmaWrCompl,
		sdpwire.RdmaRdCompl, sdpwire.ModeChange,
		sdpwire.SrcAvailCancel, sdpwire.SinkAvailCancel, sdpwire.SinkCancelAck, sdpwire.ChRcvBuf,
		sdpwire.ChRcvBufAck, sdpwire.SuspComm,
		sdpwire.SuspCommAck, sdpwire.DisConn, sdpwire.AbortConn,
	} {
		m := sdpwire.Message{MID: mid, MSeqAck: uint32(i), Bufs: uint16(3 + i)}
		n := 0
		switch mid {
		case sdpwire.Data:
			m.Flags, n = sdpwire.OOBPend|sdpwire.OOBPres, 33
		case sdpwire.SrcAvail, sdpwire.SinkAvail:
			m.Size, m.STag, m.VA, n = 77777, 0xdeadbeef, 0x0123456789abcdef, 5
			if mid == sdpwire.SinkAvail {
				m.NonDiscards = 12
			}
		case sdpwire.RdmaWrCompl, sdpwire.RdmaRdCompl, sdpwire.ChRcvBuf, sdpwire.ChRcvBufAck:
			m.Size, m.Flags = 4321, sdpwire.ReqPipe
		case sdpwire.ModeChange:
			m.Mode, m.S = sdpwire.Pipelined, true
		case sdpwire.SuspComm:
			m.Port = 4711
		}
		c.send(i&1, m, n)
	}
	return record(t, c.frames)
}

// allVITCP returns a capture with every message of VI/TCP, and every flag and attribute.
func allVITCP(t *testing.T) []byte {
	var d vitcpwire.Dialect
	c := newTalk()
	calling, _ := vitcpwire.MakeDiscriminator([]byte("a \"name\""))
	called, _ := vitcpwire.MakeDiscriminator([]byte{1, 2, 0xff})
	ce := vitcpwire.CE{Attributes: vitcpwire.KnownAttributes | 0x100, MTU: 70000, Calling: calling,
		Called: called, ReadWindow: 9}
	rdma := vitcpwire.RDMA{Address: 0xfedcba9876543210, Handle: 0xcafe0001, Length: 10}
	for i, typ := range []vitcpwire.Type{
		vitcpwire.ConnectRequest, vitcpwire.ConnectAccept, vitcpwire.ConnectReject, vitcpwire.ConnectNoMatch,
		vitcpwire.Send, vitcpwire.ReadRequest, vitcpwire.ReadResponse, vitcpwire.Write,
		vitcpwire.NOP, vitcpwire.Disconnect,
	} {
		h := vitcpwire.Header{Type: typ, Flags: vitcpwire.Flags(i & 7), Offset: uint32(i),
			Immediate: 0x80000000 + uint32(i), Number: vitcpwire.Number(i), Ack: 0xffffffff,
			Posted: vitcpwire.Count(60000 + i), Error: vitcpwire.MakeRemoteError(uint8(i%4), uint8(i%7))}
		var body []byte
		switch {
		case typ.HasCE():
			body = ce.Append(nil)
		case typ.HasRDMA():
			body = rdma.Append(nil)
		}
		if typ == vitcpwire.Send || typ == vitcpwire.Write {
			body = append(body, make([]byte, 10)...)
		}
		h.Length = uint16(vitcpwire.HeaderLen + len(body))
		c.say(i&1, append(d.AppendHeader(nil, h), body...))
	}
	return record(t, c.frames)
}

// allPortmap returns a capture with every message of the Port Mapper, for both address families.
func allPortmap(t *testing.T) []byte {
	file := filepath.Join(t.TempDir(), "x")
	c, err := pcapng.Create(file, "test")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("10.0.0.2:3935")
	for i, a := range []string{"192.0.2.1:80", "[2001:db8::7]:443"} {
		for typ := portmapwire.Request; typ <= portmapwire.Deny; typ++ {
			ap := netip.MustParseAddrPort(a)
			m := portmapwire.Message{Type: typ, PmTime: uint8(i + 1), AssocHandle: 0x8000000000000001,
				Cp: netip.AddrPortFrom(ap.Addr(), 9), Ap: ap}
			c.Datagram(true, talkers[0], at, m.Append(nil))
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
