package decode

import (
	"fmt"
	"strings"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/nvmewire"
	"viaduct/internal/wire/rdmap"
)

// TestNVMe: the capsules of an I/O queue are decoded, and Sends of a stream with other private data
// are not decoded as capsules.
func TestNVMe(t *testing.T) {
	r := nvmewire.Request{QID: 1, HRQSize: 128, HSQSize: 127}
	var connect nvmewire.SQE
	connect.SetConnect(&nvmewire.Connect{QID: 1, SQSize: 127})
	connect.SGL = nvmewire.SGL{Type: nvmewire.SGLOffset, Length: 1024}
	read := nvmewire.SQE{Opcode: nvmewire.OpRead, Flags: 0x40, CID: 0x1005, NSID: 1,
		SGL: nvmewire.SGL{Type: nvmewire.SGLKeyedInvalidate, Length: 4096, Key: 0x700}, CDW: [6]uint32{8, 0, 7}}
	response := nvmewire.CQE{CID: 0x1005, Status: nvmewire.LBAOutOfRange, SQHead: 2}
	for _, host := range []bool{true, false} {
		c := newTalk()
		private := r.Append(nil)
		if !host {
			private[31] = 1
		}
		c.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1, Private: private}.Append(nil))
		c.say(1, mpa.Frame{Kind: mpa.Reply, Rev: 1}.Append(nil))
		var enc [2]mpa.Encoder
		send := func(from int, msn ddp.MSN, b []byte) {
			c.say(from, enc[from].Append(nil, rdmap.Send.UntaggedHeader(msn, 0, true, 0).Append(nil), b))
		}
		send(0, 1, append(connect.Append(nil), make([]byte, 1024)...))
		send(0, 2, read.Append(nil))
		send(1, 1, response.Append(nil))
		var got []string
		for _, m := range all(t, Options{}, record(t, c.frames)) {
			if m.Proto != "nvme" {
				continue
			}
			fields := ""
			for _, f := range m.Fields {
				if k, ok := strings.CutPrefix(f.Key, "nvme."); ok {
					fields += fmt.Sprintf(" %s=%s", k, f.String())
				}
			}
			got = append(got, m.Name+fields)
		}
		want := []string{
			"Connect cid=0x0 qid=1 sgl_type=0x1 sgl_key=0x0 sgl_address=0x0 sgl_length=1024",
			"Read cid=0x1005 nsid=1 slba=8 blocks=8 sgl_type=0x4f sgl_key=0x700 sgl_address=0x0 sgl_length=4096",
			"Response cid=0x1005 status=LBA out of range result=0x0 sqhd=2",
		}
		if !host {
			want = nil
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("host %v: %q, want %q", host, got, want)
		}
	}
}
