package samehost_test

import (
	"fmt"

	"viaduct/samehost"
)

// Parse reads a policy from a flag or a configuration file.
func ExampleParse() {
	p, err := samehost.Parse("auto")
	fmt.Println(p == samehost.Auto, err)
	_, err = samehost.Parse("perhaps")
	fmt.Println(err != nil)
	// Output:
	// true <nil>
	// true
}
