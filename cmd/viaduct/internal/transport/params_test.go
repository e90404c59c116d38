package transport

import (
	"fmt"
	"strconv"
	"testing"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/fcvi"
	"viaduct/sdp"
	"viaduct/vitcp"
)

// TestParams: the transports accept all values the table of parameters allows. The table and
// package sdp have the same ranges and defaults for SDP.
func TestParams(t *testing.T) {
	for _, s := range addr.Schemes {
		base := s.Name + "://127.0.0.1:1"
		if s.HasDisc {
			base += "/d"
		}
		for _, p := range s.Params {
			values := p.Words
			switch p.Kind {
			case addr.Number, addr.Size:
				values = []string{fmt.Sprint(p.Lo), fmt.Sprint(p.Hi)}
			case addr.WWN:
				values = []string{"20:00:00:00:00:00:00:01"}
			case addr.Directory:
				values = []string{"/run"}
			case addr.HostPort, addr.IP:
				values = []string{"127.0.0.1"}
			}
			for _, v := range values {
				u, err := addr.Parse(base + "?" + p.Name + "=" + v)
				if err == nil {
					_, err = For(u)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
	}
	for _, p := range addr.SchemeOf("sdp").Params {
		if sdpOwn[p.Name] {
			continue
		}
		var o sdp.Options
		if err := o.Set(map[string]string{p.Name: p.Default}); err != nil && p.Kind != addr.Size {
			t.Error(err)
		}
		if p.Kind == addr.Number || p.Kind == addr.Size {
			if err := o.Set(map[string]string{p.Name: strconv.FormatUint(p.Hi+1, 10)}); err == nil {
				t.Errorf("sdp takes %s=%d", p.Name, p.Hi+1)
			}
		}
	}
	d := sdp.Defaults()
	for name, want := range map[string]int{"recv-buffers": d.RecvBuffers, "recv-buffer-size": d.RecvBufferSize, "send-threshold": d.SendThreshold,
		"recv-threshold": d.RecvThreshold, "send-buffer": d.SendBuffer, "receive-buffer": d.ReceiveBuffer,
		"max-adverts": d.MaxAdverts, "read-depth": d.ReadDepth} {
		if n, err := addr.ParseSize(addr.SchemeOf("sdp").Param(name).Default); err != nil || n != uint64(want) {
			t.Errorf("the table has %d as default of %s, sdp %d", n, name, want)
		}
	}
	if d := addr.SchemeOf("vitcp").Param("window").Default; d != fmt.Sprint(vitcp.DefaultReadWindow) ||
		d != fmt.Sprint(fcvi.DefaultMaxReads) {
		t.Errorf("the table has %s as default of window", d)
	}
	if u, _ := parse(t, "sdp://h:1?send-threshold=1KiB"); u != nil {
		if o, err := sdpOptions(u, nil); err != nil || o.SendThreshold != 1024 {
			t.Errorf("send-threshold=1KiB is %d, %v", o.SendThreshold, err)
		}
	}
	u, _ := parse(t, "sdp://h:1?policy=buffered&recv-policy=combined")
	if o, _ := sdpOptions(u, nil); o.SendPolicy != sdp.PinBuffered || o.RecvPolicy != sdp.PinCombined {
		t.Errorf("policy=buffered&recv-policy=combined is %v and %v", o.SendPolicy, o.RecvPolicy)
	}
}
