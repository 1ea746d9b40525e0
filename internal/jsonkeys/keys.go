package jsonkeys

import (
	"reflect"
	"slices"
	"strings"
)

// field finds the type of the field of a struct that a key is decoded into.
func field(t reflect.Type, key string) (found reflect.StructField, ok bool) {
	eachKey(t, func(name string, f reflect.StructField) {
		if name == key && !ok {
			found, ok = f, true
		}
	})
	return found, ok
}

// Keys are the keys that a struct type is decoded from, in the order of its fields.
func Keys(t reflect.Type) []string {
	var keys []string
	eachKey(t, func(name string, _ reflect.StructField) {
		if !slices.Contains(keys, name) { // one of an embedded struct that is shadowed
			keys = append(keys, name)
		}
	})
	return keys
}

// eachKey calls fn with each key of a struct type, those of embedded structs after its own, as encoding/json prefers them.
func eachKey(t reflect.Type, fn func(name string, f reflect.StructField)) {
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case f.Tag.Get("json") == "-":
		case f.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			embedded = append(embedded, inner)
		case !f.IsExported():
		case name == "":
			fn(f.Name, f)
		default:
			fn(name, f)
		}
	}
	for _, inner := range embedded {
		eachKey(inner, fn)
	}
}
