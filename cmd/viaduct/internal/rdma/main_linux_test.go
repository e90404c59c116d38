//go:build linux && (amd64 || arm64)

package rdma

import (
	"testing"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
