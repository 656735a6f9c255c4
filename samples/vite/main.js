document.querySelector('#time').textContent = `Loaded at ${new Date().toLocaleTimeString()}.`
