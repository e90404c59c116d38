//go:build linux && (amd64 || arm64)

package run

import (
	"testing"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
