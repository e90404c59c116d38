package frameio

import (
	"fmt"
	"testing"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) {
	before := openFiles()
	testkit.Main(m, func() error {
		// The runtime's poller keeps two.
		if n := openFiles(); n > before+4 {
			return fmt.Errorf("%d descriptors, %d at the beginning", n, before)
		}
		return nil
	})
}
