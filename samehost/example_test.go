package samehost_test

import (
	"fmt"

	"viaduct/samehost"
)

// A policy as a flag or a configuration file spells it.
func ExampleParse() {
	p, err := samehost.Parse("auto")
	fmt.Println(p == samehost.Auto, err)
	_, err = samehost.Parse("perhaps")
	fmt.Println(err != nil)
	// Output:
	// true <nil>
	// true
}
