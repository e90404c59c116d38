package mapper

import (
	"testing"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
