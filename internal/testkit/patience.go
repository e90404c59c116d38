package testkit

import "time"

// Patience is how long a test waits for an expected event. It is generous, several times the
// duration of any such event on a machine that gives the test a tenth of its time, because only a
// failing test waits that long.
const Patience = time.Minute
