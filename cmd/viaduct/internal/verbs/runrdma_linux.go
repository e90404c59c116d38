//go:build linux && (amd64 || arm64)

package verbs

import (
	"fmt"
	"net"

	"viaduct/cmd/viaduct/internal/rdma"
	"viaduct/cmd/viaduct/internal/run"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/samehost"
)

var rdmaRestarts run.Restarts = rdma.Restarts

// rdmaService returns the constructor of the service for programs of "run --rdma".
func rdmaService(devices []rdma.Device, noCRC, tcp bool) run.NewService {
	return func(e *shell.Env, explain func(string, ...any), restart func(int)) (run.Service, error) {
		o := rdma.Options{Devices: devices, Logger: e.Log, NoCRC: noCRC, Explain: explain, Restart: restart,
			Status: e.Status.Server()}
		o.Tell = func(format string, args ...any) { fmt.Fprintf(e.Stderr, "viaduct run: "+format+"\n", args...) }
		if tcp {
			o.SameHost = samehost.Off
		}
		if e.Capture != nil {
			o.WrapConn = func(nc net.Conn, dialled bool) net.Conn { return e.Wrap(nc, dialled) }
			o.Tap = e.Capture.RoCE
		}
		return rdma.New(o)
	}
}

// rdmaFindings returns the additional findings of "run --rdma --check".
func rdmaFindings(devices []rdma.Device) (all []run.Finding) {
	for _, f := range rdma.Check(devices) {
		all = append(all, run.Finding(f))
	}
	return all
}
