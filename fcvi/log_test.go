package fcvi

import (
	"log/slog"
	"os"
)

// testLogger shows the life of ports and connections if asked for.
var testLogger = func() *slog.Logger {
	if os.Getenv("FCVI_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}()
