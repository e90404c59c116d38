package fcvi

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"viaduct/internal/fc/fabric"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// TestRuns: long messages are sent as runs of frames and arrive as runs, complete or not at all.
// [FCVI-8.4-4] [FCVI-5.8-5] [FCVI-5.8-6]
func TestRuns(t *testing.T) {
	const length = 40_000 // 20 frames
	for _, op := range []vi.Control{vi.OpSendReceive, vi.OpRDMAWrite, vi.OpRDMARead} {
		for _, level := range levels {
			if op == vi.OpRDMARead && level == iu.Unreliable {
				continue
			}
			for lost := range 41 { // each frame passes two links; 40: none is lost
				t.Run(fmt.Sprintf("%v, %v, frame %d", op, level, lost), func(t *testing.T) {
					s := newSim(t, simConfig{seed: 3, order: true})
					a, b := s.provers(level)
					b.postRecv(length)
					copy(b.mem, pattern(length, 1))
					data, from, ius := pattern(length, 2), 1, opcode(iu.SendRqst)
					switch op {
					case vi.OpRDMAWrite:
						ius = opcode(iu.WriteRqst)
					case vi.OpRDMARead:
						from, ius = 0, opcode(iu.ReadResp)
					}
					f := s.net.AddFault(&fabric.Fault{Do: fabric.Drop, Nth: lost + 1, Match: ius})
					took := s.ports[from].took
					w := a.post(op, data)
					s.net.Run(10 * time.Second)
					took = s.ports[from].took - took
					if f.Done > 0 {
						if b.recvs[0].done && b.recvs[0].d.Status == 0 ||
							level != iu.Unreliable && a.broke+b.broke == 0 || took > 18 {
							t.Errorf("frame %d lost, and not noticed: %d taken", lost, took)
						}
						return
					}
					got := b.mem[:length]
					switch op {
					case vi.OpSendReceive:
						if got = b.recvs[0].buf; !b.recvs[0].done || b.recvs[0].d.Length != length {
							t.Errorf("received: %+v", b.recvs[0].d)
						}
					case vi.OpRDMARead:
						got, data = data, b.mem[:length]
					}
					if !w.done || w.status != 0 || !bytes.Equal(got, data) || took != 18 {
						t.Errorf("done %v, %v, %d frames taken", w.done, w.status, took)
					}
				})
			}
		}
	}
}
