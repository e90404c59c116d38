package frameio

import (
	"fmt"
	"testing"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) {
	before := testkit.OpenFiles()
	testkit.Main(m, func() error {
		// The runtime's poller keeps two.
		if n := testkit.OpenFiles(); n > before+4 {
			return fmt.Errorf("%d descriptors, %d at the beginning", n, before)
		}
		return nil
	})
}
