//go:build faults

package fault

import "os"

var on = os.Getenv("VIADUCT_FAULT")

// On reports whether the fault of this name is switched on.
func On(name string) bool { return on == name }
