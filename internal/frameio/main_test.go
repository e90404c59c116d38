package frameio

import (
	"fmt"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) {
	before := testkit.OpenFiles()
	testkit.Main(m, func() error {
		n := 0
		for end := time.Now().Add(testkit.Patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			// The runtime's poller keeps two descriptors. Descriptors that connections share are
			// closed shortly after the last connection.
			if n = testkit.OpenFiles(); n <= before+4 {
				return nil
			}
		}
		return fmt.Errorf("%d descriptors, %d at the beginning", n, before)
	})
}
