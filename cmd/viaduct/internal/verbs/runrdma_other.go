//go:build !linux || (!amd64 && !arm64)

package verbs

import (
	"viaduct/cmd/viaduct/internal/rdma"
	"viaduct/cmd/viaduct/internal/run"
)

func rdmaFindings([]rdma.Device) []run.Finding { return nil }

var rdmaRestarts run.Restarts

func rdmaService([]rdma.Device, bool, bool) run.NewService { return func() {} }
