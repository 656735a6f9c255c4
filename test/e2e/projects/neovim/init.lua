-- The configuration of Neovim for the tests. It works with Neovim 0.7, which has no vim.lsp.start, and with later versions.
vim.o.swapfile = false
vim.o.hidden = true

-- attach connects the current buffer to a language server, and waits until the server is initialized.
function attach(command, root)
  local config = { name = 'berth', cmd = command, root_dir = root }
  if vim.lsp.start then
    client = vim.lsp.start(config)
  else
    client = vim.lsp.start_client(config)
    vim.lsp.buf_attach_client(0, client)
  end
  return vim.wait(30000, function()
    local one = vim.lsp.get_client_by_id(client)
    return one and one.initialized
  end)
end

-- connected reports whether the client has not ended.
function connected()
  return not vim.lsp.client_is_stopped(client)
end

-- messages returns the diagnostics of the current buffer, as a user sees them.
function messages()
  local all = {}
  for _, found in ipairs(vim.diagnostic.get(0)) do
    table.insert(all, found.message)
  end
  return table.concat(all, '\n')
end

-- set replaces the text of the current buffer, which must end with a newline.
function set(text)
  vim.api.nvim_buf_set_lines(0, 0, -1, false, vim.split(text:sub(1, -2), '\n', { plain = true }))
end

-- text returns the text of the current buffer as JSON, because --remote-expr prints no empty lines.
function text()
  return vim.fn.json_encode(table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\n') .. '\n')
end

-- move sets the cursor to the first occurrence of a word.
function move(word)
  vim.fn.cursor(1, 1)
  vim.fn.search('\\V' .. word, 'c')
end

-- ask sends a request about the position of the cursor, and returns the results as JSON.
function ask(method)
  local answers, failure = vim.lsp.buf_request_sync(0, method, vim.lsp.util.make_position_params(0, 'utf-16'), 30000)
  if not answers then
    return 'failed: ' .. tostring(failure)
  end
  return vim.fn.json_encode(answers)
end

function rename(name)
  vim.lsp.buf.rename(name)
end

function format()
  if vim.lsp.buf.format then
    vim.lsp.buf.format({ timeout_ms = 30000 })
  else
    vim.lsp.buf.formatting_sync(nil, 30000)
  end
end
