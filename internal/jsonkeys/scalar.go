package jsonkeys

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

func (c *checker) scalar(raw []byte, t reflect.Type, path string) {
	switch t.Kind() {
	case reflect.Bool:
		if raw[0] != 't' && raw[0] != 'f' {
			c.mismatch(path, "true or false", raw)
		}
	case reflect.String:
		if t == reflect.TypeFor[json.Number]() {
			c.decode(raw, t, path)
		} else if raw[0] != '"' {
			c.mismatch(path, "a string", raw)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		_, err := strconv.ParseInt(string(raw), 10, t.Bits())
		c.whole(raw, err, fmt.Sprintf("%d to %d", -1<<(t.Bits()-1), 1<<(t.Bits()-1)-1), path)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		_, err := strconv.ParseUint(string(raw), 10, t.Bits())
		if _, below := strconv.ParseInt(string(raw), 10, 64); below == nil && raw[0] == '-' && err != nil {
			err = strconv.ErrRange
		}
		c.whole(raw, err, fmt.Sprintf("0 to %d", ^uint64(0)>>(64-t.Bits())), path)
	case reflect.Float32, reflect.Float64:
		if !number(raw) {
			c.mismatch(path, "a number", raw)
		} else if _, err := strconv.ParseFloat(string(raw), t.Bits()); err != nil {
			c.fault(path, "want a number that fits %d bits, got %s", t.Bits(), raw)
		}
	default:
		c.decode(raw, t, path)
	}
}

// whole reports a whole number that could not be parsed.
func (c *checker) whole(raw []byte, err error, limits, path string) {
	switch {
	case err == nil:
	case number(raw) && errors.Is(err, strconv.ErrRange):
		c.fault(path, "want %s, got %s", limits, raw)
	default:
		c.mismatch(path, "a whole number", raw)
	}
}

func number(raw []byte) bool { return raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' }

// decode lets the type itself say what it takes.
func (c *checker) decode(raw []byte, t reflect.Type, path string) {
	if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
		c.fault(path, "%v", err)
	}
}

// mismatch reports a value of the wrong type. Long ones are cut: a fault is a line.
func (c *checker) mismatch(path, want string, raw []byte) {
	got := ""
	switch {
	case raw[0] == '{':
		got = "an object"
	case raw[0] == '[':
		got = "an array"
	case raw[0] == '"':
		var s string
		_ = json.Unmarshal(raw, &s)
		if r := []rune(s); len(r) > 40 {
			s = string(r[:40]) + "…"
		}
		got = "string " + strconv.Quote(s)
	case number(raw):
		got = "number " + string(raw[:min(len(raw), 40)])
	default:
		got = string(raw)
	}
	c.fault(path, "want %s, got %s", want, got)
}
