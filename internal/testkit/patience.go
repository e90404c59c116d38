package testkit

import "time"

// Patience is how long a test waits for an expected event: several times the duration of any such
// event on a machine that gives the test a tenth of its time. Patience can be so long, because only
// a failing test waits for the whole minute.
const Patience = time.Minute
