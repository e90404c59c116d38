package fcvi

import (
	"log/slog"
	"os"
)

// testLogger logs set-up and end of ports and connections if FCVI_LOG is set.
var testLogger = func() *slog.Logger {
	if os.Getenv("FCVI_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}()
