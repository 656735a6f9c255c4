module example.test/greeter

go 1.24
